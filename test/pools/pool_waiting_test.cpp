// Requests that wait for a pool's memory, step by step: how a wait begins, continues and is served.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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

using gpumem::allocation;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

using pool_waiting = gpumem_test::limited_waits;

TEST_F(pool_waiting, freed_memory_resumes_a_request_through_its_executor) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  EXPECT_FALSE(second.ended());
  EXPECT_FALSE(executor.run_one());
  block.reset();
  EXPECT_FALSE(second.ended()) << "resumed inside the free";
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(second.block().bytes(), 60 * MiB);
  EXPECT_EQ(second.block().stream().get(), b.get());
  EXPECT_LE(pool.statistics().reserved, 100 * MiB);
}

TEST_F(pool_waiting, granted_memory_is_ordered_after_the_work_on_the_freed_block) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  use(block);
  request second{*this, pool, b, 60 * MiB};
  free_used(block);
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(pool.statistics().reuse_waited, 1u);
  use(second.block());
  free_used(second.block());
}

TEST_F(pool_waiting, request_gets_moved_and_new_pages_together) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 80 * MiB).wait();
  request first{*this, pool, b, 60 * MiB}, second{*this, pool, b, 30 * MiB};
  block.reset();
  run_until([&] {
    simulator::run_until_idle();
    return first.ended() && second.ended();
  });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(second.ended(), outcome::granted) << "20 MiB are free, and 20 MiB may be mapped";
  EXPECT_LE(pool.statistics().reserved, 100 * MiB);
}

TEST_F(pool_waiting, requests_are_served_in_the_order_of_arrival) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  auto block = pool.acquire(a, 90 * MiB).wait();
  request first{*this, pool, a, 60 * MiB}, second{*this, pool, b, 50 * MiB}, third{*this, pool, b, 4 * MiB};
  EXPECT_EQ(pool.acquire(b, 4 * MiB).try_now().error().reason, outcome::exhausted) << "overtook the waiting requests";
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_FALSE(second.ended());
  EXPECT_FALSE(third.ended()) << "overtook the second";
  first.block().reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(third.ended(), outcome::granted);
}

TEST_F(pool_waiting, only_requests_that_fit_get_a_turn) {
  expect_turns_only_where_they_fit(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting, thread_waits_without_a_coroutine) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  std::thread waits{[&] { EXPECT_EQ(pool.acquire(b, 60 * MiB).wait().bytes(), 60 * MiB); }};
  while (pool.acquire(b, MiB).try_now()) std::this_thread::yield(); // until the thread waits
  block.reset();
  waits.join();
}

TEST_F(pool_waiting, request_gets_memory_that_another_thread_has_cached) {
  pool_resource pool{device, {.limit = 64 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto small = pool.acquire(a, MiB).wait();
  std::thread{[&] {
    for (int i = 0; i < 2; ++i) pool.acquire(a, MiB).wait().reset();
    auto const p = pool.allocate(a, MiB);
    pool.deallocate(a, p, MiB);
  }}.join();
  EXPECT_GT(pool.statistics().cached, 0u);
  request first{*this, pool, a, 4 * MiB};
  EXPECT_FALSE(first.ended());
  EXPECT_EQ(pool.statistics().cached, 0u) << "a thread caches memory for which another waits";
  std::thread{[&] { small.reset(); }}.join();
  EXPECT_EQ(pool.statistics().cached, 0u);
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_waiting, threads_cache_blocks_again_after_a_wait) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  block.reset();
  run_all();
  second.block().reset();
  pool.acquire(a, 256).wait().reset();
  pool.acquire(a, 256).wait().reset();
  EXPECT_GT(pool.statistics().cached, 0u);
}

TEST_F(pool_waiting, request_keeps_its_place_if_memory_is_fragmented) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false, .max_overtakes = 0}};
  std::vector<allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  request first{*this, pool, a, 3 * MiB}, second{*this, pool, a, MiB};
  for (auto const i : {0, 2}) blocks[i].reset();
  EXPECT_FALSE(executor.run_one());
  blocks[4].reset();
  EXPECT_TRUE(executor.run_one()) << "3 MiB are free";
  EXPECT_FALSE(first.ended()) << "but they are not contiguous";
  run_all();
  EXPECT_FALSE(second.ended()) << "overtook the first";
  blocks[1].reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting, request_counts_as_one_allocation_however_often_it_tries) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false}};
  gpumem::statistics_adaptor counted{pool};
  std::vector<allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  {
    request first{*this, counted, a, 2 * MiB};
    auto const failures = pool.statistics().failures;
    for (auto const i : {0, 2, 4, 5}) blocks[i].reset();
    run_all();
    EXPECT_EQ(first.ended(), outcome::granted);
    auto const bytes = static_cast<std::int64_t>(2 * MiB);
    EXPECT_EQ(counted.counters(), (gpumem::allocation_counts{{bytes, bytes, bytes}, {1, 1, 1}}));
    EXPECT_EQ(pool.statistics().failures, failures);
  }
  EXPECT_EQ(counted.counters().allocations.value, 0);
}

TEST_F(pool_waiting, request_is_granted_when_the_work_of_a_stream_is_complete) {
  pool_resource pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed}};
  auto block = pool.acquire(a, 60 * MiB).wait(), live = pool.acquire(a, MiB).wait();
  use(block);
  request second{*this, pool, b, 60 * MiB};
  free_used(block);
  EXPECT_TRUE(executor.run_one());
  EXPECT_FALSE(second.ended()) << "the kernel still runs";
  simulator::run_until_idle();
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::granted);
  use(second.block());
  free_used(second.block());
}

TEST_F(pool_waiting, request_waits_for_completion_where_no_block_is_live) {
  pool_resource pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  use(block);
  free_used(block);
  request second{*this, pool, b, 60 * MiB};
  EXPECT_FALSE(second.ended());
  simulator::run_until_idle();
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting, request_is_granted_when_the_limit_is_raised) {
  expect_grant_when_the_limit_is_raised(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting, request_gets_memory_freed_in_a_capture) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  a.begin_capture();
  block.reset();
  gpumem::driver_api::driver().graph_destroy(a.end_capture());
  run_until([&] {
    simulator::run_until_idle();
    return second.ended().has_value();
  });
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting, request_gets_memory_that_leaves_the_quarantine) {
  pool_resource pool{device, {.limit = 100 * MiB, .hardened = {.enabled = true}}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  EXPECT_FALSE(second.ended());
  block.reset();
  run_until([&] {
    simulator::run_until_idle();
    return second.ended().has_value();
  });
  EXPECT_EQ(second.ended(), outcome::granted);
}

} // namespace
