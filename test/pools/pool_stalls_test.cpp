// Requests that wait while the pool hears nothing more from the work that holds its memory. Time is that of the
// schedules: it passes only where a test lets it.
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
    for (int i = 0; i < 3; ++i) { // the pools release their memory
      simulator::run_until_idle();
      gpumem::detail::sync::sleep_for(1s);
    }
    waiting_fixture::TearDown();
  }
  pool_type make_pool(bool hardened = false) const {
    return pool_type{device, {.limit = 100 * MiB, .stall_timeout = 1s, .hardened = {.enabled = hardened}}};
  }
  // Lets time pass: each millisecond the device runs, and requests that have a turn resume.
  void let_pass(std::chrono::milliseconds time) {
    for (; time > 0ms; time -= 1ms) {
      gpumem::detail::sync::sleep_for(1ms);
      if (device_runs) simulator::run_until_idle();
      run_all();
    }
  }

  bool device_runs = true;
};

TEST_F(pool_stalls, first_request_ends_if_memory_outside_scopes_is_not_freed) {
  for (bool const hardened : {false, true}) {
    auto pool = make_pool(hardened);
    auto const block = pool.acquire(a, 60 * MiB).wait();
    std::optional<request> earlier{std::in_place, *this, pool, b, 60 * MiB};
    let_pass(10ms);
    earlier.reset();
    gpumem::detail::sync::sleep_for(10s);
    request first{*this, pool, b, 60 * MiB}, second{*this, pool, b, 50 * MiB};
    let_pass(900ms);
    EXPECT_EQ(first.ended(), std::nullopt) << "time counts only while requests wait";
    let_pass(200ms);
    EXPECT_EQ(first.ended(), outcome::stalled) << hardened;
    EXPECT_EQ(second.ended(), std::nullopt) << "the work of the first goes on";
    let_pass(800ms);
    EXPECT_EQ(second.ended(), std::nullopt);
    let_pass(200ms);
    EXPECT_EQ(second.ended(), outcome::stalled) << hardened;
  }
}

TEST_F(pool_stalls, request_of_the_youngest_scope_that_holds_memory_ends) {
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

TEST_F(pool_stalls, frees_prevent_a_stall) {
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

TEST_F(pool_stalls, grants_prevent_a_stall) {
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

TEST_F(pool_stalls, new_and_cancelled_requests_do_not_prevent_a_stall) {
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

TEST_F(pool_stalls, stall_ends_a_request_of_several_blocks) {
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

TEST_F(pool_stalls, running_work_on_freed_memory_prevents_a_stall) {
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

TEST_F(pool_stalls, pressure_callback_prevents_a_stall) {
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

TEST_F(pool_stalls, stall_preempts_younger_work) {
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

TEST_F(pool_stalls, no_driver_call_is_made_before_a_stall_is_due) {
  pool_type pool{device, {.limit = 100 * MiB, .stall_timeout = 1h}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  let_pass(100ms);
  auto const before = gpumem::driver_api::driver_calls();
  gpumem::detail::sync::sleep_for(50min);
  EXPECT_LE(gpumem::driver_api::driver_calls() - before, 10u);
  EXPECT_EQ(first.ended(), std::nullopt);
  gpumem::detail::sync::sleep_for(11min);
  run_all();
  EXPECT_EQ(first.ended(), outcome::stalled);
}

TEST_F(pool_stalls, stall_timeout_does_not_delay_earlier_polls) {
  pool_type pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed, .stall_timeout = 1h}};
  auto block = pool.acquire(a, 60 * MiB).wait(), rest = pool.acquire(a, 30 * MiB).wait();
  request first{*this, pool, b, 60 * MiB};
  let_pass(100ms); // the next scheduled check is an hour away
  device_runs = false;
  use(block);
  free_used(block);
  let_pass(10ms);
  EXPECT_EQ(first.ended(), std::nullopt);
  device_runs = true;
  let_pass(10ms);
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_stalls, no_stall_is_reported_without_a_timeout) {
  pool_type pool{device, {.limit = 100 * MiB}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  gpumem::detail::sync::sleep_for(100h);
  run_all();
  EXPECT_EQ(first.ended(), std::nullopt);
}

TEST_F(pool_stalls, every_timeout_that_is_not_negative_is_accepted) {
  EXPECT_THROW((pool_type{device, {.stall_timeout = -1ns}}), std::invalid_argument);
  pool_type pool{device, {.limit = 100 * MiB, .stall_timeout = std::chrono::nanoseconds::max()}};
  auto const block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB};
  let_pass(10ms);
  EXPECT_EQ(first.ended(), std::nullopt);
}

} // namespace
