// Ends of work that holds memory for which other requests wait: by exceptions, inside a stop, and before it restarts.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;

class pool_work_ends : public gpumem_test::waiting_fixture {
protected:
  // Holds one block, waits for another, and stores the outcome in `reason`.
  template <class Scope> gpumem::task<> two_blocks(Scope work, std::size_t each) {
    auto const body = [&]() -> gpumem::task<> {
      ++begun;
      auto const one = co_await work.acquire(b, each, {.resume_on = &executor});
      auto const other = co_await work.acquire(b, each, {.resume_on = &executor});
    };
    try {
      co_await gpumem::with_retry(work, body, [this] { ++rolled_back; }, &executor);
      reason = outcome::granted;
    } catch (gpumem::acquire_error const& e) { reason = e.reason(); }
  }

  int begun = 0, rolled_back = 0;
  std::optional<outcome> reason;
};

TEST_F(pool_work_ends, work_that_throws_is_not_rolled_back) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope work{pool};
  std::coroutine_handle<> place;
  bool thrown = false;
  auto const body = [&]() -> gpumem::task<> {
    auto const mine = co_await work.acquire(a, 80 * MiB);
    co_await test::parked{&place};
    throw std::runtime_error{"its own"};
  };
  auto const whole = [&]() -> gpumem::task<> {
    try {
      co_await gpumem::with_retry(work, body, [&] { ++rolled_back; }, &executor);
    } catch (std::runtime_error const&) { thrown = true; }
  };
  auto const running = test::start(whole());
  request first{*this, pool, b, 60 * MiB};
  EXPECT_TRUE(work.as_holder().may_roll_back());
  place.resume();
  EXPECT_TRUE(thrown);
  EXPECT_EQ(rolled_back, 0);
  EXPECT_FALSE(work.as_holder().may_roll_back());
  EXPECT_EQ(work.held(), 0u);
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted) << "memory freed during the unwinding";
  first.block().reset();
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_work_ends, memory_freed_inside_a_stop_goes_to_the_next_request) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  std::optional block{pool.acquire(a, 100 * MiB).wait()};
  std::stop_source source;
  // The same stop also ends the next request in line, before or after the block is freed.
  std::stop_callback const frees{source.get_token(), [&] { block.reset(); }};
  request first{*this, pool, b, 60 * MiB, source.get_token()}, second{*this, pool, b, 80 * MiB};
  source.request_stop();
  run_all();
  EXPECT_TRUE(first.ended());
  if (first.ended() == outcome::granted) first.block().reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_work_ends, work_that_waits_to_begin_again_ends_with_its_pool_or_its_coroutine) {
  for (bool const closes : {true, false}) {
    begun = rolled_back = 0;
    reason.reset();
    pool_resource pool{device, {.limit = 100 * MiB}};
    scope old{pool, "old"}, young{pool, "young"};
    auto held = old.acquire(a, 20 * MiB).wait();
    auto other = pool.acquire(a, 10 * MiB).wait();
    auto second = test::start(two_blocks(young, 40 * MiB));
    run_all();
    request first{*this, old, a, 40 * MiB};
    run_until([&] { return first.ended().has_value(); });
    ASSERT_EQ(first.ended(), outcome::granted);
    EXPECT_EQ(rolled_back, 1);
    request last{*this, pool, a, 50 * MiB};
    if (closes) {
      pool.close();
      for (int i = 0; i < 10; ++i) executor.run_one();
      EXPECT_EQ(reason, outcome::closed);
      EXPECT_EQ(last.ended(), outcome::closed);
    } else {
      second.destroy();
      held.reset();
      other.reset();
      run_until([&] {
        gpumem::simulator::run_until_idle();
        return last.ended().has_value();
      });
      EXPECT_FALSE(reason);
      EXPECT_EQ(last.ended(), outcome::granted) << "it does not wait behind work that has ended";
    }
    EXPECT_EQ(begun, 1);
    EXPECT_EQ(young.held(), 0u);
  }
}

TEST_F(pool_work_ends, closed_pool_ends_a_request_for_several_blocks) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto const block = pool.acquire(a, 80 * MiB).wait();
  auto const asks = [&]() -> gpumem::task<> {
    try {
      co_await gpumem::acquire_all(pool, {{a, 20 * MiB}, {b, 20 * MiB}}, {.resume_on = &executor});
    } catch (gpumem::acquire_error const& e) { reason = e.reason(); }
  };
  auto const running = test::start(asks());
  pool.close();
  for (int i = 0; i < 10; ++i) executor.run_one();
  EXPECT_EQ(reason, outcome::closed);
}

} // namespace
