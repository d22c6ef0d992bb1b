// The cost of calls in counts: host allocations, driver calls, recorded events.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include "../support/allocation_count.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../support/busy_library_thread.hpp"
#include "pool_counters.hpp"

namespace {

using namespace gpumem_test;
namespace simulator = gpumem::simulator;
using gpumem::pool_resource;
using test::host_allocations;

class pool_counts : public pool_counters_test {};

// Frees of every kind: they coalesce, leave gaps, span streams, happen under pressure and above the release threshold.
TEST_F(pool_counts, free_makes_no_host_allocation) {
  pool_resource r{upstream, {.limit = 8 * MiB, .release_threshold = 4 * MiB}};
  std::vector<void*> blocks;
  while (auto const p = r.try_allocate(a, 64 * 1024)) blocks.push_back(*p);
  ASSERT_EQ(blocks.size(), 128u);
  auto const before = host_allocations();
  for (std::size_t start : {0, 1}) {
    for (auto i = start; i < blocks.size(); i += 2) {
      if (i % 3 == 0) r.deallocate(b, blocks[i], 64 * 1024);
      if (i % 3 == 1) r.deallocate(a, blocks[i]);
      if (i % 3 == 2) r.deallocate_sync(blocks[i], 64 * 1024);
    }
  }
  EXPECT_EQ(host_allocations(), before);
  EXPECT_EQ(r.statistics().live, 0u);
}

// One free in 64 leaves the thread cache. The stream may have frees from an earlier test, which count for its next
// event, so the calls are counted from an event on. The library thread is busy meanwhile: a pass of it would flush the
// cache and poll.
TEST_F(pool_counts, reuse_by_the_same_stream_asks_the_driver_only_beyond_the_thread_cache) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const reuse = [&] { r.deallocate(a, r.allocate(a, 1000), 1000); };
  test::busy_library_thread const busy;
  auto const calls = [](char const* name) { return gpumem::driver_api::driver_calls(name); };
  for (auto const before = calls("cuEventRecord"); calls("cuEventRecord") == before;) reuse();
  constexpr std::array never{"cuEventRecord", "cuStreamWaitEvent", "cuStreamGetId", "cuMemAlloc", "cuStreamQuery"};
  std::array<std::uint64_t, never.size()> before{};
  for (std::size_t i = 0; i < never.size(); ++i) before[i] = calls(never[i]);
  auto const asked = calls("cuStreamIsCapturing");
  constexpr int few = 500; // fewer frees than until the next event is due
  for (int i = 0; i < few; ++i) reuse();
  for (std::size_t i = 0; i < never.size(); ++i) EXPECT_EQ(calls(never[i]), before[i]) << never[i];
  EXPECT_LE(calls("cuStreamIsCapturing") - asked, few / 64u + 1);
}

TEST_F(pool_counts, thread_cache_hit_takes_no_shard_lock) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  for (int i = 0; i < 2; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  auto const counters = counters_of(r);
  auto const calls = gpumem::driver_api::driver_calls(), allocations = host_allocations();
  constexpr std::uint64_t few = 50; // fewer than the 64 frees until the next event
  for (std::uint64_t i = 0; i < few; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  EXPECT_EQ(host_allocations(), allocations);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls);
  EXPECT_EQ(counters_of(r).locked_calls, counters.locked_calls);
  EXPECT_EQ(counters_of(r).thread_cache_hits, counters.thread_cache_hits + few);
  EXPECT_EQ(r.statistics().reuse_thread_cache, counters.thread_cache_hits + few);
}

// Blocks that are too large for the thread caches.
TEST_F(pool_counts, free_list_hit_takes_one_lock_and_asks_once_whether_the_stream_captures) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  for (int i = 0; i < 2; ++i) r.deallocate(a, r.allocate(a, 8 * MiB), 8 * MiB);
  auto const counters = counters_of(r);
  auto const calls = gpumem::driver_api::driver_calls(), allocations = host_allocations();
  auto const asked = gpumem::driver_api::driver_calls("cuStreamIsCapturing");
  constexpr std::uint64_t few = 10;
  for (std::uint64_t i = 0; i < few; ++i) r.deallocate(a, r.allocate(a, 8 * MiB), 8 * MiB);
  EXPECT_EQ(host_allocations(), allocations);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls + few);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamIsCapturing"), asked + few);
  EXPECT_EQ(counters_of(r).locked_calls, counters.locked_calls + 2 * few);
  EXPECT_EQ(counters_of(r).thread_cache_hits, counters.thread_cache_hits);
}

// Only the driver can tell which stream a raw handle is, and whether it is capturing.
TEST_F(pool_counts, reuse_on_a_foreign_stream_makes_two_driver_calls) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  CUstream handle = nullptr;
  driver_function<decltype(cuStreamCreate)>("cuStreamCreate")(&handle, CU_STREAM_NON_BLOCKING);
  cuda::stream_ref const foreign{handle};
  // After its first 4,096 frees a stream records an event at every 64th.
  for (int i = 0; i < 4200; ++i) r.deallocate(foreign, r.allocate(foreign, 1000), 1000);
  auto const spoken = gpumem::driver_api::driver_calls("cuEventRecord");
  while (gpumem::driver_api::driver_calls("cuEventRecord") == spoken)
    r.deallocate(foreign, r.allocate(foreign, 1000), 1000);
  auto const calls = gpumem::driver_api::driver_calls(), ids = gpumem::driver_api::driver_calls("cuStreamGetId");
  auto const counters = counters_of(r);
  constexpr std::uint64_t few = 10;
  for (std::uint64_t i = 0; i < few; ++i) r.deallocate(foreign, r.allocate(foreign, 1000), 1000);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamGetId"), ids + 2 * few);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls + 2 * 2 * few);
  EXPECT_EQ(counters_of(r).thread_cache_hits, counters.thread_cache_hits + few);
  driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2")(handle);
}

TEST_F(pool_counts, reuse_from_another_stream_makes_one_record_and_one_wait) {
  pool_resource r{device, {.limit = 8 * MiB, .effort = 0}};                     // moved pages would record events too
  for (auto* const on : {&a, &b}) r.deallocate(*on, r.allocate(*on, 256), 256); // with two streams frees record events
  for (int i = 0; i < 2; ++i) {                                                 // returns all free memory
    r.trim();
    simulator::run_until_idle();
  }
  auto const records = [] { return gpumem::driver_api::driver_calls("cuEventRecord"); };
  auto const waits = [] { return gpumem::driver_api::driver_calls("cuStreamWaitEvent"); };
  auto const before = r.statistics().reuse_waited;
  constexpr std::uint64_t steals = 10;
  for (std::uint64_t i = 0; i <= steals; ++i) {
    auto& on = i % 2 ? b : a;
    auto const recorded = records(), waited = waits();
    void* const block = r.allocate(on, 8 * MiB);
    simulator::work(on, {simulator::write(block, 8 * MiB)}, std::chrono::seconds{1}); // outlasts the test
    r.deallocate(on, block, 8 * MiB);
    EXPECT_LE(records() - recorded, 1u);
    EXPECT_EQ(waits() - waited, i > 0 ? 1u : 0u);
  }
  EXPECT_EQ(r.statistics().reuse_waited - before, steals);
}

TEST_F(pool_counts, requests_after_reserve_make_no_host_allocation) {
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 16; ++i) streams.emplace_back(device);
  pool_resource r{device};
  r.reserve(256 * MiB);
  std::array<void*, 8> blocks;
  std::array<void*, 600> others;
  auto const before = host_allocations();
  for (auto& each : others) each = r.allocate(streams[0], 4 * KiB);
  for (auto const& on : streams) {
    for (auto& each : blocks) each = r.allocate(on, 4 * KiB);
    for (auto* const each : blocks) r.deallocate(on, each, 4 * KiB);
  }
  for (auto* const each : others) r.deallocate(streams[0], each, 4 * KiB);
  EXPECT_EQ(host_allocations(), before);
}

// The same requests repeatedly: after the first few passes the pool has all memory that a pass needs.
TEST_F(pool_counts, million_warm_operations_allocate_nothing_upstream) {
  pool_resource r{upstream};
  struct block {
    void* pointer;
    std::size_t bytes;
  };
  auto const pass = [&] {
    std::mt19937_64 random{11};
    std::vector<block> live;
    for (int i = 0; i < 10'000; ++i) {
      if (live.size() < 500) {
        auto const bytes = std::size_t{1} + random() % (std::size_t{1} << (8 + random() % 15));
        live.push_back({r.allocate(a, bytes), bytes});
        continue;
      }
      std::swap(live[random() % live.size()], live.back());
      r.deallocate(a, live.back().pointer, live.back().bytes);
      live.pop_back();
    }
    for (auto const& each : live) r.deallocate(a, each.pointer, each.bytes);
  };
  for (int cold = 0; cold < 100; ++cold) pass();
  auto const warm = r.statistics();
  while (r.statistics().frees - warm.frees < 500'000) pass();
  EXPECT_EQ(r.statistics().upstream_allocations, warm.upstream_allocations);
  EXPECT_EQ(r.statistics().reserved, warm.reserved);
}

TEST_F(pool_counts, few_frees_record_an_event) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const before = gpumem::driver_api::driver_calls("cuEventRecord");
  for (int i = 0; i < 64'000; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
  EXPECT_LE(gpumem::driver_api::driver_calls("cuEventRecord") - before, 1000u);
  EXPECT_GT(gpumem::driver_api::driver_calls("cuEventRecord") - before, 0u);
}

TEST_F(pool_counts, large_frees_record_an_event_near_the_limit_only) {
  for (std::size_t const limit : {std::size_t{0}, 64 * MiB}) {
    pool_resource r{upstream, {.initial_size = 64 * MiB, .limit = limit}};
    r.deallocate(b, r.allocate(b, 1000), 1000);
    auto* const large = r.allocate(a, 8 * MiB);
    auto const before = gpumem::driver_api::driver_calls("cuEventRecord");
    r.deallocate(a, large, 8 * MiB);
    EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventRecord") - before, limit ? 1u : 0u);
  }
}

TEST_F(pool_counts, cached_frees_record_events_near_a_limit_set_late) {
  constexpr std::size_t bytes = 32 * 1024;
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const records = [&] {
    auto const before = gpumem::driver_api::driver_calls("cuEventRecord");
    for (int i = 0; i < 640; ++i) r.deallocate(a, r.allocate(a, bytes), bytes);
    return gpumem::driver_api::driver_calls("cuEventRecord") - before;
  };
  EXPECT_EQ(records(), 0u);
  r.set_limit(64 * MiB);
  EXPECT_GE(records(), 640 * bytes / (64 * MiB / 256) / 2) << "one event at 256 KiB, or at the next free after that";
}

TEST_F(pool_counts, destroyed_streams_leave_no_events_behind) {
  pool_resource r{upstream};
  auto const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  auto const destroy = driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
  auto const before = gpumem::driver_api::driver_calls("cuEventCreate");
  for (int i = 0; i < 100; ++i) {
    CUstream made = nullptr;
    create(&made, CU_STREAM_NON_BLOCKING);
    cuda::stream_ref const s{made};
    r.deallocate(s, r.allocate(s, 1000), 1000);
    gpumem::simulator::run_until_idle();
    destroy(made);
  }
  EXPECT_LE(gpumem::driver_api::driver_calls("cuEventCreate") - before, 8u);
}

} // namespace
