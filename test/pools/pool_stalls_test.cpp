// Requests that wait for work of which the pool hears nothing more. The clock is the schedules', so that time passes
// only where a test lets it.
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

using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class pool_stalls : public gpumem_test::waiting_fixture {
protected:
  using pool_type = pool_resource<gpumem::cuda_resource>;

  void TearDown() override {
    for (int i = 0; i < 3; ++i) { // the pools give back
      simulator::run_until_idle();
      gpumem::sync::sleep_for(1s);
    }
    waiting_fixture::TearDown();
  }
  pool_type make_pool(bool hardened = false) const {
    return pool_type{device, {.limit = 100 * MiB, .stall_timeout = 1s, .hardened = {.enabled = hardened}}};
  }
  // Every millisecond the device does what it has to do, and requests that have a turn take it.
  void let_pass(std::chrono::milliseconds time) {
    for (; time > 0ms; time -= 1ms) {
      gpumem::sync::sleep_for(1ms);
      if (device_runs) simulator::run_until_idle();
      run_all();
    }
  }

  bool device_runs = true;
};

TEST_F(pool_stalls, end_the_first_request_where_other_work_holds_the_memory) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const block = pool.acquire(a, 60 * MiB).wait();
    std::optional<request> earlier{std::in_place, *this, pool, b, 60 * MiB};
    let_pass(10ms);
    earlier.reset();
    gpumem::sync::sleep_for(10s);
    request first{*this, pool, b, 60 * MiB}, second{*this, pool, b, 50 * MiB};
    let_pass(900ms);
    EXPECT_EQ(first.ended(), std::nullopt) << "time counts while requests wait";
    let_pass(200ms);
    EXPECT_EQ(first.ended(), outcome::stalled) << hardened;
    EXPECT_EQ(second.ended(), std::nullopt) << "the work of the first goes on";
    let_pass(800ms);
    EXPECT_EQ(second.ended(), std::nullopt);
    let_pass(200ms);
    EXPECT_EQ(second.ended(), outcome::stalled) << hardened;
  }
}

TEST_F(pool_stalls, end_a_request_of_the_youngest_scope_that_holds_memory) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const other = pool.acquire(a, 20 * MiB).wait();
    scope old{pool}, young{pool}, idle{pool};
    auto one = old.acquire(a, 30 * MiB).wait(), two = young.acquire(b, 30 * MiB).wait();
    request first{*this, old, a, 25 * MiB}, second{*this, young, b, 25 * MiB}, third{*this, idle, b, 25 * MiB};
    let_pass(1100ms);
    EXPECT_EQ(first.ended(), std::nullopt);
    EXPECT_EQ(second.ended(), outcome::stalled) << hardened;
    EXPECT_EQ(third.ended(), std::nullopt);
    two.reset();
    let_pass(10ms);
    EXPECT_EQ(first.ended(), outcome::granted);
  }
}

TEST_F(pool_stalls, are_none_while_something_is_freed) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const block = pool.acquire(a, 60 * MiB).wait();
    gpumem::allocation parts[4];
    for (auto& each : parts) each = pool.acquire(a, MiB).wait();
    request first{*this, pool, a, 60 * MiB};
    for (auto& each : parts) {
      let_pass(900ms);
      each.reset();
    }
    let_pass(900ms);
    EXPECT_EQ(first.ended(), std::nullopt);
    let_pass(1200ms);
    EXPECT_EQ(first.ended(), outcome::stalled) << hardened;
  }
}

TEST_F(pool_stalls, are_none_while_something_is_granted) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  let_pass(900ms);
  void* const beside = pool.allocate(a, MiB);
  let_pass(900ms);
  request small{*this, pool, a, MiB};
  run_all();
  EXPECT_EQ(small.ended(), outcome::granted);
  let_pass(900ms);
  EXPECT_EQ(first.ended(), std::nullopt);
  let_pass(1200ms);
  EXPECT_EQ(first.ended(), outcome::stalled);
  pool.deallocate(a, beside, MiB);
}

TEST_F(pool_stalls, are_not_put_off_by_requests_that_come_and_go) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const block = pool.acquire(a, 60 * MiB).wait();
    request first{*this, pool, a, 60 * MiB};
    for (int i = 0; i < 11; ++i) {
      request other{*this, pool, a, 70 * MiB};
      let_pass(100ms);
    }
    EXPECT_EQ(first.ended(), outcome::stalled) << hardened;
  }
}

TEST_F(pool_stalls, end_requests_of_several_blocks) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const block = pool.acquire(a, 60 * MiB).wait();
    std::optional<outcome> ended;
    auto const body = [&]() -> gpumem::task<> {
      try {
        (void)co_await pool.acquire_all({{a, 30 * MiB}, {b, 30 * MiB}}, {.resume_on = &executor});
      } catch (gpumem::acquire_error const& e) { ended = e.reason(); }
    };
    auto const running = test::start(body());
    let_pass(900ms);
    EXPECT_FALSE(ended);
    let_pass(1300ms);
    EXPECT_EQ(ended, outcome::stalled) << hardened;
  }
}

TEST_F(pool_stalls, are_none_while_work_on_free_memory_goes_on) {
  pool_type pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed, .stall_timeout = 1s}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  use(block);
  free_used(block);
  request first{*this, pool, b, 60 * MiB};
  device_runs = false;
  let_pass(5s);
  EXPECT_EQ(first.ended(), std::nullopt);
  device_runs = true;
  let_pass(10ms);
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_stalls, are_none_while_others_free_memory_when_asked) {
  auto pool = make_pool();
  auto cached = pool.acquire(a, 60 * MiB).wait();
  test::manual_executor where;
  auto const spiller = pool.on_pressure(where, [&](std::size_t wanted) {
    cached.reset();
    return wanted;
  });
  request first{*this, pool, a, 60 * MiB};
  let_pass(5s);
  EXPECT_EQ(first.ended(), std::nullopt) << "the function has not run yet";
  EXPECT_TRUE(where.run_one());
  let_pass(10ms);
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_stalls, make_younger_work_give_way_that_can_be_rolled_back) {
  auto pool = make_pool();
  auto other = pool.acquire(a, 40 * MiB).wait();
  scope old{pool}, young{pool};
  int began = 0, ended = 0;
  auto const body = [&]() -> gpumem::task<> {
    ++began;
    auto const one = co_await young.acquire(b, 20 * MiB, {.resume_on = &executor});
    co_await test::hop{executor};
    auto const two = co_await young.acquire(b, 60 * MiB, {.resume_on = &executor});
  };
  auto const wait_for = [&]() -> gpumem::task<> {
    co_await gpumem::with_retry(young, body, [] {}, &executor);
    ++ended;
  };
  auto const running = test::start(wait_for());
  run_all();
  request first{*this, old, a, 70 * MiB};
  let_pass(900ms);
  EXPECT_EQ(young.held(), 20 * MiB) << "what it holds would not be enough";
  let_pass(200ms);
  EXPECT_EQ(young.held(), 0u);
  EXPECT_EQ(first.ended(), std::nullopt);
  other.reset();
  let_pass(10ms);
  EXPECT_EQ(first.ended(), outcome::granted);
  first.block().reset();
  let_pass(10ms);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(began, 2);
}

TEST_F(pool_stalls, are_looked_for_only_when_they_may_be_there) {
  pool_type pool{device, {.limit = 100 * MiB, .stall_timeout = 1h}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  let_pass(100ms);
  auto const before = gpumem::driver_calls();
  gpumem::sync::sleep_for(50min);
  EXPECT_LE(gpumem::driver_calls() - before, 10u);
  EXPECT_EQ(first.ended(), std::nullopt);
  gpumem::sync::sleep_for(11min);
  run_all();
  EXPECT_EQ(first.ended(), outcome::stalled);
}

TEST_F(pool_stalls, do_not_keep_the_library_thread_from_what_is_due_before) {
  pool_type pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed, .stall_timeout = 1h}};
  auto block = pool.acquire(a, 60 * MiB).wait(), rest = pool.acquire(a, 30 * MiB).wait();
  request first{*this, pool, b, 60 * MiB};
  let_pass(100ms); // the next pass is an hour from now
  device_runs = false;
  use(block);
  free_used(block);
  let_pass(10ms);
  EXPECT_EQ(first.ended(), std::nullopt);
  device_runs = true;
  let_pass(10ms);
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_stalls, are_none_without_a_timeout) {
  pool_type pool{device, {.limit = 100 * MiB}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  gpumem::sync::sleep_for(100h);
  run_all();
  EXPECT_EQ(first.ended(), std::nullopt);
}

TEST_F(pool_stalls, may_be_due_after_any_time_that_is_not_negative) {
  EXPECT_THROW((pool_type{device, {.stall_timeout = -1ns}}), std::invalid_argument);
  pool_type pool{device, {.limit = 100 * MiB, .stall_timeout = std::chrono::nanoseconds::max()}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  let_pass(10ms);
  EXPECT_EQ(first.ended(), std::nullopt);
}

} // namespace
