// Pressure callbacks that are coroutines: they await something before they free memory for waiting requests.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
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
using gpumem::task;
using gpumem_test::MiB;

class pool_pressure : public gpumem_test::waiting_fixture {
protected:
  // Resumes the callback where it awaits.
  void go_on() { std::exchange(place, nullptr).resume(); }

  std::coroutine_handle<> place;
};

TEST_F(pool_pressure, pressure_ends_when_an_awaiting_callback_returns) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope caches{pool}, work{pool};
  auto cached = caches.acquire(a, 80 * MiB).wait();
  auto const mark = caches.waiting_elsewhere(); // now work that waits holds all memory
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t wanted) -> task<std::size_t> {
    ++calls;
    EXPECT_EQ(wanted, 30 * MiB);
    co_await test::parked{&place};
    cached.reset();
    co_return wanted;
  });
  request first{*this, work, b, 50 * MiB};
  run_until([&] { return place != nullptr; });
  let_the_library_thread_poll();
  EXPECT_FALSE(first.ended()) << "the callback may still free memory";
  request second{*this, work, b, 30 * MiB};
  run_all();
  EXPECT_EQ(calls, 1) << "one call at a time";
  go_on();
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_pressure, request_ends_if_an_awaiting_callback_frees_nothing) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope work{pool};
  auto const held = work.acquire(a, 80 * MiB).wait();
  auto const spiller = pool.on_pressure(executor, [&](std::size_t) -> task<std::size_t> {
    co_await test::parked{&place};
    throw std::runtime_error{"the disk is full"};
  });
  request first{*this, work, b, 60 * MiB};
  run_until([&] { return place != nullptr; });
  let_the_library_thread_poll();
  EXPECT_FALSE(first.ended());
  go_on();
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::stalled);
}

TEST_F(pool_pressure, coroutine_callback_that_awaits_nothing_acts_like_a_function) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto cached = pool.acquire(a, 80 * MiB).wait();
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t wanted) -> task<std::size_t> {
    ++calls;
    cached.reset();
    co_return wanted;
  });
  request first{*this, pool, b, 60 * MiB};
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(calls, 1);
}

TEST_F(pool_pressure, callback_can_wait_for_memory_of_another_pool) {
  pool_resource reserve{device, {.limit = 10 * MiB}};
  auto staged = reserve.acquire(b, 10 * MiB).wait(); // allocated by an earlier call
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto cached = pool.acquire(a, 80 * MiB).wait();
  int began = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t wanted) -> task<std::size_t> {
    ++began;
    auto const packed = co_await reserve.acquire(a, 10 * MiB, {.resume_on = &executor});
    cached.reset();
    co_return wanted;
  });
  request first{*this, pool, b, 60 * MiB};
  run_until([&] { return began == 1; });
  EXPECT_FALSE(executor.run_one());
  staged.reset();
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(began, 1);
  EXPECT_EQ(reserve.statistics().live, 0u);
}

TEST_F(pool_pressure, memory_that_a_callback_frees_elsewhere_counts_if_the_upstream_was_full) {
  upstream.state().capacity = 100 * MiB;
  auto* elsewhere = upstream.allocate_sync(60 * MiB);
  pool_resource pool{upstream};
  auto const block = pool.acquire(a, 10 * MiB).wait();
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t) -> std::size_t {
    if (++calls == 1) return 60 * MiB; // a false claim
    if (elsewhere) upstream.deallocate_sync(std::exchange(elsewhere, nullptr), 60 * MiB);
    return 60 * MiB;
  });
  {
    request first{*this, pool, a, 50 * MiB};
    run_until([&] { return calls == 1; });
    for (int i = 0; i < 3; ++i) run_all(), let_the_library_thread_poll();
    EXPECT_FALSE(first.ended());
    EXPECT_EQ(calls, 1) << "a false claim gives one more attempt";
    request second{*this, pool, a, 256};
    run_until([&] { return first.ended().has_value(); });
    EXPECT_EQ(first.ended(), outcome::granted);
    run_until([&] { return second.ended().has_value(); });
  }
  EXPECT_EQ(calls, 2);
}

TEST_F(pool_pressure, callback_can_destroy_itself_before_it_awaits) {
  gpumem::pressure_callback spiller;
  std::optional<request> first;
  int calls = 0;
  {
    pool_resource pool{device, {.limit = 100 * MiB}};
    auto cached = pool.acquire(a, 80 * MiB).wait();
    spiller = pool.on_pressure(executor, [&](std::size_t wanted) -> task<std::size_t> {
      ++calls;
      first.reset();
      spiller = {};
      co_await test::parked{&place};
      co_return wanted;
    });
    first.emplace(*this, pool, b, 60 * MiB);
    run_until([&] { return place != nullptr; });
  }
  go_on(); // the pool is already destroyed
  EXPECT_EQ(calls, 1);
}

} // namespace
