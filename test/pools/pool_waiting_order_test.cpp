// The order in which requests that wait for a pool's memory are served, and which requests may overtake.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"
#include "limited_waits.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;

using pool_waiting_order = gpumem_test::limited_waits;

TEST_F(pool_waiting_order, requests_are_served_by_priority_and_then_by_arrival) {
  expect_order_by_priority(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting_order, smaller_request_overtakes_while_the_first_lacks_memory) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 90 * MiB).wait();
  request first{*this, pool, a, 60 * MiB}, second{*this, pool, b, 4 * MiB};
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_FALSE(first.ended());
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_waiting_order, request_is_overtaken_at_most_max_overtakes_times) {
  for (unsigned const most : {0u, 1u, 3u}) {
    expect_overtakes(most, pool_resource{device, {.limit = 100 * MiB, .max_overtakes = most}});
  }
}

TEST_F(pool_waiting_order, freed_memory_is_kept_for_a_request_that_was_overtaken_often) {
  // 7.98 MiB are free; the first request wants 8 MiB, and the others 1 MiB each.
  pool_resource pool{device, {.initial_size = 16 * MiB, .limit = 16 * MiB, .pages = false}};
  auto rest = pool.acquire(a, 8 * MiB + 20480).wait();
  request first{*this, pool, a, 8 * MiB};
  std::deque<request> small;
  std::size_t granted = 0;
  for (int i = 0; i < 100; ++i) {
    auto& next = small.emplace_back(*this, pool, b, MiB);
    run_all();
    granted += next.ended() == outcome::granted;
    next.block().reset();
    run_all();
  }
  EXPECT_EQ(granted, pool.options().max_overtakes);
  EXPECT_FALSE(first.ended());
  rest.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  first.block().reset();
  for (auto& each : small) {
    run_all();
    EXPECT_EQ(each.ended(), outcome::granted);
    each.block().reset();
  }
}

TEST_F(pool_waiting_order, next_request_gets_what_the_first_cannot_use) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false}};
  std::deque<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  request first{*this, pool, a, 3 * MiB};
  for (auto const i : {0, 2, 4}) blocks[i].reset();
  request second{*this, pool, a, MiB};
  EXPECT_TRUE(executor.run_one());
  EXPECT_FALSE(first.ended()) << "there are 3 MiB, but not in one piece";
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_order, only_the_next_in_line_overtakes) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 2}};
  auto block = pool.acquire(a, 90 * MiB).wait();
  request first{*this, pool, a, 60 * MiB}, second{*this, pool, a, 50 * MiB}, third{*this, pool, a, 50 * MiB},
      fourth{*this, pool, b, MiB};
  run_all();
  EXPECT_FALSE(fourth.ended());
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(fourth.ended(), outcome::granted);
}

TEST_F(pool_waiting_order, plain_requests_overtake_at_most_max_overtakes_times) {
  expect_plain_overtakes(pool_resource{device, {.limit = 100 * MiB, .max_overtakes = 3}});
}

TEST_F(pool_waiting_order, next_request_is_served_if_the_first_is_destroyed) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, a, 60 * MiB}, second{*this, pool, b, 40 * MiB}, third{*this, pool, b, MiB};
  run_all();
  EXPECT_FALSE(second.ended());
  first.destroy();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_FALSE(third.ended());
}

TEST_F(pool_waiting_order, lowered_limit_ends_every_request_that_exceeds_it) {
  expect_end_when_the_limit_is_lowered(pool_resource{device, {.limit = 100 * MiB, .max_overtakes = 0}});
}

// A coroutine holds memory while it waits for a task, and the task's request waits for that memory. Neither can go on.
TEST_F(pool_waiting_order, others_are_served_beside_two_that_wait_for_each_other) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 2}};
  std::stop_source source;
  std::optional<outcome> of_task;
  auto const task = [&]() -> gpumem::task<> {
    try {
      (void)co_await pool.acquire(b, 60 * MiB, {.resume_on = &executor}, source.get_token());
    } catch (gpumem::acquire_error const& e) { of_task = e.reason(); }
  };
  auto const holder = [&]() -> gpumem::task<> {
    auto const mine = co_await pool.acquire(a, 60 * MiB, {.resume_on = &executor});
    co_await task();
  };
  auto const running = test::start(holder());
  for (int i = 0; i < 2; ++i) {
    request other{*this, pool, b, 30 * MiB};
    run_all();
    EXPECT_EQ(other.ended(), outcome::granted) << i;
  }
  request late{*this, pool, b, 30 * MiB};
  run_all();
  EXPECT_FALSE(late.ended()) << "the task has been overtaken often enough";
  source.request_stop();
  run_all();
  EXPECT_EQ(of_task, outcome::stopped);
  EXPECT_TRUE(running.done());
  EXPECT_EQ(late.ended(), outcome::granted);
  EXPECT_EQ(pool.statistics().live, 30 * MiB);
}

TEST_F(pool_waiting_order, statistics_count_waiting_requests) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  EXPECT_EQ(pool.statistics().waiting, 0u);
  request first{*this, pool, a, 60 * MiB}, second{*this, pool, b, 50 * MiB, {.priority = 1}};
  auto const seen = pool.statistics();
  EXPECT_EQ(seen.waiting, 2u);
  EXPECT_EQ(seen.waiting_bytes, 110 * MiB);
  EXPECT_GT(seen.oldest_wait_ns, 0u);
  block.reset();
  run_all();
  first.destroy();
  second.block().reset();
  auto const after = pool.statistics();
  EXPECT_EQ(after.waiting + after.waiting_bytes + after.oldest_wait_ns, 0u);
}

TEST_F(pool_waiting_order, requests_served_during_a_failed_turn_count_as_overtaking) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false, .max_overtakes = 2}};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  request first{*this, pool, a, 3 * MiB};
  std::deque<request> small;
  for (int i = 0; i < 100; ++i) small.emplace_back(*this, pool, b, MiB);
  for (auto const i : {0, 2, 4, 6}) blocks[i].reset(); // frees memory that is not contiguous
  std::size_t granted = 0;
  for (int i = 0; i < 200; ++i) {
    run_all();
    for (auto& each : small) {
      granted += each.block() ? 1u : 0u;
      each.block().reset();
    }
  }
  EXPECT_LE(granted, 6u) << "max_overtakes, plus those that had a turn when it first failed";
  EXPECT_FALSE(first.ended());
  for (auto& each : blocks) each.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  first.block().reset();
  for (auto& each : small) {
    run_all();
    EXPECT_EQ(each.ended(), outcome::granted);
    each.block().reset();
  }
}

} // namespace
