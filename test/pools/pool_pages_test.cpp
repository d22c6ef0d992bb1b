// How a pool over virtual pages grows: where it maps pages, and which pages it releases for them at its limit.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstddef>
#include <functional>
#include <vector>

import gpumem;
#include "pool_pages.hpp"

namespace {

using namespace gpumem_test;

class pool_pages : public pool_pages_test {};

TEST_F(pool_pages, pool_grows_at_its_end_by_the_shortfall) {
  gpumem::pool_resource r{device};
  auto* const first = r.allocate(a, 2 * MiB);
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  auto* const end = r.allocate(a, 2 * MiB);
  r.deallocate(a, end, 2 * MiB);
  auto* const second = r.allocate(a, 6 * MiB); // 2 MiB of them are free already
  EXPECT_EQ(second, at(first, 2 * MiB));
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(device_bytes(), 8 * MiB);
  r.deallocate(a, first, 2 * MiB);
  r.deallocate(a, second, 6 * MiB);
  auto* const both = r.allocate(a, 16 * MiB);
  EXPECT_EQ(both, first) << "free memory at the end becomes the start of a larger block";
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, both, 16 * MiB);
}

TEST_F(pool_pages, growth_of_another_stream_uses_complete_memory_at_the_end) {
  gpumem::pool_resource r{device};
  auto* const p = r.allocate(a, 2 * MiB);
  r.deallocate(a, p, 2 * MiB);
  a.synchronize();
  auto* const q = r.allocate(b, 6 * MiB);
  EXPECT_EQ(q, p);
  EXPECT_EQ(r.statistics().reserved, 6 * MiB);
  r.deallocate(b, q, 6 * MiB);
}

// Blocks are freed into a thread cache while pages are mapped. When growth crosses the threshold the cache is flushed,
// and its blocks coalesce with free neighbours.
TEST_F(pool_pages, growth_is_granted_before_cached_blocks_are_flushed_into_it) {
  std::function<void()> meanwhile = [] {};
  auto const on_mapped = [&](void*, std::size_t) {
    meanwhile();
    return true;
  };
  gpumem::pool_resource r{device, {.release_threshold = 2 * MiB}, {.on_mapped = on_mapped}};
  auto* const first = r.allocate(a, 1 * MiB);
  auto* const last = r.allocate(a, 1 * MiB);
  ASSERT_EQ(last, at(first, 1 * MiB));
  meanwhile = [&] {
    r.deallocate(a, last, 1 * MiB);
    EXPECT_GT(r.statistics().cached, 0u) << "in the thread cache";
  };
  auto* const grown = r.allocate(a, 3 * MiB);
  EXPECT_EQ(r.statistics().cached, 0u) << "above the threshold nothing is cached";
  EXPECT_TRUE(is_consistent(r));
  auto* const next = r.allocate(a, 1 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, next, 1 * MiB);
  r.deallocate(a, grown, 3 * MiB);
  r.deallocate(a, first, 1 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(pool_pages, pages_fill_holes_at_the_end_of_the_addresses) {
  gpumem::pool_resource r{device, {}, {.address_space = 16 * MiB}};
  auto const blocks = four(r);
  for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  auto* const again = r.allocate(a, 6 * MiB);
  EXPECT_EQ(again, blocks[1]);
  EXPECT_TRUE(is_consistent(r));
  auto* const rest = r.allocate(a, 2 * MiB);
  EXPECT_EQ(rest, at(blocks[1], 6 * MiB));
  EXPECT_FALSE(r.try_allocate(a, 256)) << "all addresses are in use";
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, again, 6 * MiB);
  r.deallocate(a, rest, 2 * MiB);
  for (int i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

// The bytes that are missing at the end would not be enough for the block in a hole elsewhere.
TEST_F(pool_pages, pages_fill_a_hole_up_to_free_memory_at_the_end_of_the_addresses) {
  gpumem::pool_resource r{device, {}, {.address_space = 18 * MiB}};
  auto const blocks = four(r);
  for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  r.deallocate(a, blocks[3], 4 * MiB);
  auto* const large = r.allocate(a, 8 * MiB);
  EXPECT_EQ(large, at(blocks[1], 4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 12 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 8 * MiB);
  r.deallocate(a, blocks[0], 4 * MiB);
}

// A past fault: pages were mapped where the block did not fit, released and mapped again, without end.
TEST_F(pool_pages, request_fails_at_the_end_of_the_addresses_if_no_hole_fits) {
  for (double const effort : {0., 1.}) {
    gpumem::pool_resource r{device, {.effort = effort}, {.address_space = 18 * MiB}};
    auto const blocks = four(r);
    for (int i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
    a.synchronize();
    EXPECT_EQ(r.try_allocate(a, 8 * MiB).error().reason, gpumem::outcome::exhausted);
    EXPECT_TRUE(is_consistent(r));
    auto* const less = r.allocate(a, 6 * MiB);
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, less, 6 * MiB);
    for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  }
}

TEST_F(pool_pages, free_pages_are_unmapped_at_the_limit) {
  gpumem::pool_resource r{device, {.limit = 16 * MiB}};
  auto const blocks = four(r);
  for (int i : {0, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  auto* const large = r.allocate(a, 8 * MiB); // 8 MiB are free, but not contiguous
  EXPECT_EQ(large, at(blocks[3], 4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  EXPECT_EQ(r.statistics().peak_reserved, 16 * MiB);
  EXPECT_FALSE(r.try_allocate(a, 256));
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 8 * MiB);
  for (int i : {1, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

TEST_F(pool_pages, pages_stay_if_their_unmapping_would_not_be_enough) {
  gpumem::pool_resource r{device, {.limit = 16 * MiB}};
  auto const blocks = four(r);
  r.deallocate(a, blocks[1], 4 * MiB);
  a.synchronize();
  auto const calls = [] {
    return gpumem::driver_api::driver_calls("cuMemUnmap") + gpumem::driver_api::driver_calls("cuMemRelease");
  };
  auto const before = calls();
  EXPECT_FALSE(r.try_allocate(b, 8 * MiB));
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  for (int i : {0, 2, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

TEST_F(pool_pages, pages_move_beside_new_ones_if_the_limit_allows_some) {
  gpumem::pool_resource r{device, {.limit = 18 * MiB}};
  auto const blocks = four(r);
  for (int i : {0, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  auto const released = gpumem::driver_api::driver_calls("cuMemRelease"),
             created = gpumem::driver_api::driver_calls("cuMemCreate");
  auto* const large = r.allocate(a, 10 * MiB);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemRelease"), released);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemCreate"), created + 1);
  EXPECT_EQ(r.statistics().reserved, 18 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 10 * MiB);
  for (int i : {1, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

// At the end 8 MiB would be missing, in place of the freed block only 6 MiB.
TEST_F(pool_pages, pages_fill_the_hole_between_free_memory_at_the_limit) {
  gpumem::pool_resource r{device, {.limit = 10 * MiB}};
  auto* const below = r.allocate(a, 1 * MiB);
  auto* const gone = r.allocate(a, 8 * MiB);
  auto* const above = r.allocate(a, 1 * MiB - 256);
  r.deallocate(a, gone, 8 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  EXPECT_EQ(r.statistics().reserved, 4 * MiB);
  auto* const again = r.try_allocate(a, 8 * MiB).value_or(nullptr);
  EXPECT_EQ(again, gone);
  EXPECT_EQ(r.statistics().reserved, 10 * MiB);
  r.deallocate(a, again, 8 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  auto* const less = r.try_allocate(a, 7 * MiB - 256).value_or(nullptr);
  EXPECT_EQ(less, gone) << "with the free memory below it is enough";
  for (auto* const each : {below, above, less}) r.deallocate(a, each);
}

TEST_F(pool_pages, pages_fill_the_end_of_a_hole_where_more_is_free_above) {
  gpumem::pool_resource r{device, {.limit = 10 * MiB}};
  auto* const below = r.allocate(a, 2 * MiB);
  auto* const gone = r.allocate(a, 7 * MiB);
  auto* const above = r.allocate(a, 1 * MiB - 256);
  r.deallocate(a, gone, 7 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  r.set_limit(8 * MiB);
  auto* const again = r.try_allocate(a, 5 * MiB - 256).value_or(nullptr);
  EXPECT_EQ(again, at(gone, 2 * MiB)) << "with the free memory above it is enough";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, again);
  a.synchronize();
  r.set_limit(10 * MiB);
  EXPECT_EQ(r.allocate(a, 7 * MiB), gone) << "the rest of the hole is filled too";
  r.deallocate(a, gone);
  for (auto* const each : {below, above}) r.deallocate(a, each);
}

TEST_F(pool_pages, mapping_callback_is_called) {
  std::size_t told = 0;
  {
    gpumem::pool_resource r{device,
                            {},
                            {.on_mapped = [&](void*, std::size_t bytes) { return (told += bytes) <= 8 * MiB; },
                             .on_unmapping = [&](void*, std::size_t bytes) { told -= bytes; }}};
    auto* const p = r.allocate(a, 8 * MiB);
    EXPECT_EQ(told, 8 * MiB);
    EXPECT_FALSE(r.try_allocate(a, 2 * MiB)) << "the callback refuses";
    EXPECT_EQ(r.statistics().reserved, 8 * MiB);
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, p, 8 * MiB);
    a.synchronize();
    told = 8 * MiB; // a refused mapping is not reported as unmapped
    r.trim();
  }
  EXPECT_EQ(told, 0u);
}

TEST_F(pool_pages, reserved_pages_are_one_range) {
  gpumem::pool_resource r{device, {.initial_size = 6 * MiB}};
  EXPECT_EQ(r.statistics().reserved, 6 * MiB);
  EXPECT_EQ(r.reserve(9 * MiB), 3 * MiB);
  EXPECT_EQ(r.statistics().reserved, 10 * MiB) << "whole pages";
  EXPECT_EQ(r.statistics().largest_free, 10 * MiB);
}

} // namespace
