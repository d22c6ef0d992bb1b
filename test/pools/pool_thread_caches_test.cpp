// Which freed blocks the thread caches keep, which requests they serve, and when they evict blocks.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

import gpumem;
#include "pool_counters.hpp"

namespace {

using namespace gpumem_test;
using gpumem::pool_resource;

class pool_thread_caches : public pool_counters_test {};

TEST_F(pool_thread_caches, last_large_blocks_are_cached) {
  pool_resource r{upstream, {.initial_size = 512 * MiB}};
  auto const sizes = {MiB, MiB - 256, MiB / 2};
  auto const rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      std::vector<void*> blocks;
      for (auto const bytes : sizes) blocks.push_back(r.allocate(a, bytes));
      auto bytes = sizes.begin();
      for (auto* const each : blocks) r.deallocate(a, each, *bytes++);
    }
  };
  rounds(1);
  EXPECT_EQ(r.statistics().cached, 2 * MiB + MiB / 2 - 256);
  auto const counters = counters_of(r);
  auto const calls = gpumem::driver_api::driver_calls();
  rounds(10);
  EXPECT_EQ(counters_of(r).thread_cache_hits, counters.thread_cache_hits + 30);
  EXPECT_EQ(counters_of(r).locked_calls, counters.locked_calls);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls);
  auto* const other = r.allocate(b, MiB);
  EXPECT_EQ(counters_of(r).thread_cache_hits, counters.thread_cache_hits + 30) << "not to another stream";
  r.deallocate(b, other, MiB);
}

// Each size is requested once.
TEST_F(pool_thread_caches, large_blocks_without_hits_are_not_cached_for_long) {
  pool_resource r{upstream, {.initial_size = 512 * MiB}};
  std::size_t most = 0;
  for (std::size_t i = 0; i < 500; ++i) {
    r.deallocate(a, r.allocate(a, MiB / 2 + 256 * i), MiB / 2 + 256 * i);
    most = std::max(most, r.statistics().cached);
  }
  EXPECT_GT(most, 3 * MiB);
  EXPECT_EQ(r.statistics().cached, 0u);
  EXPECT_EQ(counters_of(r).thread_cache_hits, 0u);
  auto const flushed = counters_of(r).flushed;
  for (std::size_t i = 0; i < 500; ++i) r.deallocate(a, r.allocate(a, 3 * MiB / 4 + 256 * i), 3 * MiB / 4 + 256 * i);
  EXPECT_EQ(counters_of(r).flushed, flushed) << "and such blocks are not cached first";
}

// Large blocks have a budget of 4 MiB, and each may take 1 MiB at most.
TEST_F(pool_thread_caches, large_blocks_are_evicted_at_the_end_of_their_budget) {
  pool_resource r{upstream, {.initial_size = 512 * MiB}};
  std::vector<void*> blocks(6);
  for (auto& each : blocks) each = r.allocate(a, MiB);
  for (auto* const each : blocks) r.deallocate(a, each, MiB);
  EXPECT_EQ(r.statistics().cached, 4 * MiB);
  EXPECT_EQ(counters_of(r).flushed, 2u);
  r.deallocate(a, r.allocate(a, MiB + 256), MiB + 256);
  EXPECT_EQ(r.statistics().cached, 3 * MiB);
  auto const near = counters_of(r).thread_cache_hits;
  for (auto& each : blocks) each = r.allocate(a, MiB);
  EXPECT_EQ(counters_of(r).thread_cache_hits, near + 3);
  for (auto* const each : blocks) r.deallocate(a, each, MiB);
}

TEST_F(pool_thread_caches, medium_blocks_beyond_their_budget_are_cached_as_large_ones) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  std::vector<void*> blocks(24);
  for (auto& each : blocks) each = r.allocate(a, MiB / 4);
  for (auto* const each : blocks) r.deallocate(a, each, MiB / 4);
  EXPECT_EQ(r.statistics().cached, 6 * MiB) << "16 by size, out of 4 MiB, and the last 8";
  auto const near = counters_of(r).thread_cache_hits;
  for (auto& each : blocks) each = r.allocate(a, MiB / 4);
  EXPECT_EQ(counters_of(r).thread_cache_hits, near + 24);
  for (auto* const each : blocks) r.deallocate(a, each, MiB / 4);
}

// Ten blocks of 900 KiB: rounded up to their size class only nine would fit.
TEST_F(pool_thread_caches, near_the_limit_medium_blocks_are_not_rounded_up) {
  for (std::size_t const count : {1, 10}) {
    auto const limit = count * 900 * KiB;
    pool_resource r{upstream, {.initial_size = limit, .limit = limit}};
    std::vector<void*> blocks(count);
    for (auto& each : blocks) {
      auto const got = r.try_allocate(a, 900 * KiB);
      ASSERT_TRUE(got);
      each = *got;
    }
    EXPECT_FALSE(r.try_allocate(a, 1));
    for (auto* const each : blocks) r.deallocate(a, each, 900 * KiB);
    EXPECT_EQ(r.statistics().live, 0u);
  }
}

TEST_F(pool_thread_caches, miss_takes_a_block_of_the_next_two_size_classes) {
  pool_resource r{upstream, {.initial_size = 64 * MiB}};
  auto const asked_for = [&](std::size_t kept, std::size_t wanted) {
    auto const before = counters_of(r).thread_cache_hits;
    auto* const p = r.allocate(a, kept);
    r.deallocate(a, p, kept);
    auto* const q = r.allocate(a, wanted);
    bool const hit = counters_of(r).thread_cache_hits > before;
    if (hit) EXPECT_EQ(p, q);
    if (hit) EXPECT_EQ(r.find(q)->allocated, kept);
    r.deallocate(a, q, wanted);
    r.trim(SIZE_MAX); // flushes the thread caches
    return hit;
  };
  for (std::size_t const size : {8 * KiB, 64 * KiB, 128 * KiB}) {
    EXPECT_TRUE(asked_for(size + size / 8, size));
    EXPECT_TRUE(asked_for(size + size / 4, size));
    EXPECT_FALSE(asked_for(size + 3 * size / 8, size)) << "over a quarter larger";
    EXPECT_FALSE(asked_for(size - size / 16, size)) << "too small";
  }
  EXPECT_FALSE(asked_for(512, 256)) << "twice as much";
  EXPECT_TRUE(asked_for(72 * KiB, 64 * KiB)) << "a medium block for a small request";
  EXPECT_FALSE(asked_for(2 * MiB, MiB));
}

// Streams whose numbers differ by 16 share a stream cache.
TEST_F(pool_thread_caches, large_blocks_of_streams_that_share_a_cache_are_kept_together) {
  pool_resource r{device, {.initial_size = 512 * MiB}};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 40; ++i) streams.emplace_back(device);
  std::uint64_t near = 0;
  for (int round = 0; round < 50; ++round) {
    for (auto const& each : streams) r.deallocate(each, r.allocate(each, 1000), 1000);
    auto const before = counters_of(r).thread_cache_hits;
    for (int i = 0; i < 6; ++i) { // three of the first streams and three of the last
      auto const& on = streams[static_cast<std::size_t>(i < 3 ? i : 34 + i)];
      r.deallocate(on, r.allocate(on, MiB / 2 + 256), MiB / 2 + 256);
    }
    near += counters_of(r).thread_cache_hits - before;
  }
  EXPECT_GE(near, 49u * 6u * 9 / 10) << "except for frees that recorded an event";
}

// For larger sizes the memory that rounding wastes would outweigh its benefit.
TEST_F(pool_thread_caches, sizes_up_to_a_quarter_of_a_mebibyte_are_rounded_up) {
  pool_resource r{device, {.initial_size = 256 * MiB}};
  auto const granted = [&](std::size_t bytes) {
    auto* const p = r.allocate(a, bytes);
    auto const got = r.statistics().allocated;
    r.deallocate(a, p, bytes);
    return got;
  };
  EXPECT_EQ(granted(1000), 1024u);
  EXPECT_EQ(granted(200 * KiB), 208 * KiB);
  EXPECT_EQ(granted(241 * KiB), 256 * KiB);
  EXPECT_EQ(granted(256 * KiB + 1), 256 * KiB + 256);
}

TEST_F(pool_thread_caches, cached_blocks_raise_no_peak) {
  pool_resource r{upstream, {.initial_size = 128 * MiB}};
  void* kept[2] = {r.allocate(a, MiB / 4), r.allocate(a, MiB / 4)};
  for (auto* const each : kept) r.deallocate(a, each, MiB / 4);
  ASSERT_EQ(r.statistics().cached, MiB / 2);
  auto* const live = r.allocate(a, MiB);
  r.trim(128 * MiB); // flushes the thread caches
  EXPECT_EQ(r.statistics().cached, 0u);
  EXPECT_EQ(r.statistics().peak_live, MiB);
  r.deallocate(a, live, MiB);
}

TEST_F(pool_thread_caches, cached_bytes_stay_within_the_budget_at_every_instant) {
  pool_resource r{upstream};
  std::mt19937_64 random{12};
  std::vector<void*> live;
  std::size_t most = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (live.size() < 100 || (live.size() < 400 && random() % 2)) {
      live.push_back(r.allocate(random() % 2 ? a : b, std::size_t{1} << (8 + random() % 13)));
    } else {
      std::swap(live[random() % live.size()], live.back());
      r.deallocate(random() % 2 ? a : b, live.back());
      live.pop_back();
    }
    auto const f = r.statistics();
    auto const least = std::min(f.reserved / 2, 4 * MiB);
    auto const small = std::clamp(f.reserved / 100, least, 64 * MiB);
    auto const medium = std::max(f.reserved / 128, least), large = std::max(f.reserved / 32, least);
    ASSERT_LE(f.cached, small + medium + large);
    ASSERT_LE(f.allocated + f.cached, f.reserved);
    most = std::max(most, f.cached);
  }
  EXPECT_GT(most, r.statistics().reserved / 200) << "little was ever cached";
  EXPECT_GT(r.statistics().reuse_thread_cache, 0u);
  for (auto* const each : live) r.deallocate(a, each);
}

// The blocks that were cached for the first stream use the whole budget.
TEST_F(pool_thread_caches, blocks_cached_for_a_stream_that_a_thread_has_left_are_evicted) {
  constexpr std::size_t bytes = 64 * 1024;
  pool_resource r{device, {.initial_size = 64 * MiB}};
  std::vector<void*> blocks(64);
  for (auto& each : blocks) each = r.allocate(a, bytes);
  for (auto* const each : blocks) r.deallocate(a, each, bytes);
  ASSERT_GE(r.statistics().cached, 4 * MiB - bytes);
  auto const near = r.statistics().reuse_thread_cache;
  auto const rounds = [&](int count) {
    for (int i = 0; i < count; ++i) r.deallocate(b, r.allocate(b, bytes), bytes);
  };
  rounds(30);
  EXPECT_EQ(r.statistics().reuse_thread_cache, near) << "the thread may use the first stream again";
  rounds(4000);
  EXPECT_GT(r.statistics().reuse_thread_cache, near + 3000);
  EXPECT_GE(r.statistics().cached, 3 * MiB) << "blocks that take no needed budget stay";
}

// The host never sees any work of the stream complete.
TEST_F(pool_thread_caches, frees_behind_endless_work_are_cached) {
  pool_resource r{device, {.initial_size = 64 * MiB}};
  r.deallocate(b, r.allocate(b, 1000), 1000);
  auto const rounds = [&](int count) {
    auto const near = r.statistics().reuse_thread_cache;
    for (int i = 0; i < count; ++i) r.deallocate(a, r.allocate(a, 1000), 1000);
    return r.statistics().reuse_thread_cache - near;
  };
  rounds(100'000);
  EXPECT_GE(rounds(1000), 970u);
}

// The same for medium blocks, the last few of which are kept in the large cache.
TEST_F(pool_thread_caches, medium_blocks_for_a_stream_that_a_thread_has_left_are_evicted) {
  constexpr std::size_t bytes = MiB / 4;
  pool_resource r{device, {.initial_size = 64 * MiB}};
  std::vector<void*> blocks(16);
  auto const round = [&](gpumem::stream const& on) {
    auto const near = r.statistics().reuse_thread_cache;
    for (auto& each : blocks) each = r.allocate(on, bytes);
    for (auto* const each : blocks) r.deallocate(on, each, bytes);
    return r.statistics().reuse_thread_cache - near;
  };
  round(a);
  round(a);
  EXPECT_LE(round(b), 8u);
  for (int i = 0; i < 100; ++i) round(b);
  EXPECT_GE(round(b), 15u);
}

// One of the 16 other streams shares a stream cache with the first.
TEST_F(pool_thread_caches, stream_cache_is_handed_to_a_more_active_stream) {
  constexpr std::size_t bytes = 1000;
  pool_resource r{device, {.initial_size = 64 * MiB}};
  std::vector<void*> blocks(4);
  for (auto& each : blocks) each = r.allocate(a, bytes);
  for (auto* const each : blocks) r.deallocate(a, each, bytes);
  auto const near_of = [&](gpumem::stream const& on, int count) {
    auto const before = r.statistics().reuse_thread_cache;
    for (int i = 0; i < count; ++i) r.deallocate(on, r.allocate(on, bytes), bytes);
    return r.statistics().reuse_thread_cache - before;
  };
  std::vector<gpumem::stream> others;
  for (int i = 0; i < 16; ++i) others.emplace_back(device);
  for (auto const& each : others) EXPECT_GE(near_of(each, 100), 50u);
  // If both streams alternate, the cache stays with the stream that has it as long as it is used.
  ASSERT_GE(near_of(a, 100), 50u);
  std::uint64_t near = 0;
  for (int i = 0; i < 50; ++i) {
    near += near_of(a, 1);
    for (auto const& each : others) near_of(each, 1);
  }
  EXPECT_GE(near, 45u);
}

} // namespace
