// Free pages are moved to where memory is needed before new pages are made, within the time budget.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include <cuda.h>

import gpumem;
#include "pool_pages.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem_test::MiB;

class pool_moves : public gpumem_test::pool_pages_test {
protected:
  // Records an event after the frees, whose work is complete; the next poll sees it.
  static void poll(pool& r) {
    EXPECT_EQ(r.trim(r.statistics().reserved), 0u);
    simulator::run_until_idle();
  }
  // Returns the number of pages made plus the number released.
  static std::uint64_t made() {
    return gpumem::driver_api::driver_calls("cuMemCreate") + gpumem::driver_api::driver_calls("cuMemRelease");
  }
  // Allocates four neighbouring blocks of 4 MiB, frees the first and the third, and returns the others.
  std::vector<void*> every_second_of_four(pool& r) {
    auto const blocks = four(r);
    for (int i : {0, 2}) r.deallocate(a, blocks[i], 4 * MiB);
    a.synchronize();
    return {blocks[1], blocks[3]};
  }
};

TEST_F(pool_moves, blocks_of_all_sizes_lie_at_the_beginning_of_free_memory) {
  pool r{device, {.initial_size = 64 * MiB}};
  auto* const small = r.allocate(a, 1 * MiB);
  auto* const large = r.allocate(a, 32 * MiB);
  EXPECT_EQ(large, at(small, 1 * MiB));
  for (auto* const each : {small, large}) r.deallocate(a, each);
}

// A past fault: the pool moved pages away from beside the hole where it then needed them.
TEST_F(pool_moves, pool_stays_small_at_the_end_of_its_addresses) {
  constexpr std::size_t addresses = 192 * MiB, most_live = 40 * MiB;
  pool r{device, {.effort = 1}, {.address_space = addresses}};
  std::mt19937 random_source{1};
  std::deque<void*> live;
  auto const mapped_before = gpumem::driver_api::driver_calls("cuMemMap");
  for (int i = 0; i < 5000; ++i) {
    auto const most = 1u << random_source() % 8;
    auto const bytes = MiB / 4 * (1 + random_source() % most);
    while (r.statistics().allocated + bytes > most_live) {
      auto const which = live.begin() + static_cast<std::ptrdiff_t>(random_source() % live.size());
      r.deallocate(a, *which);
      live.erase(which);
    }
    a.synchronize();
    live.push_back(r.allocate(a, bytes));
  }
  EXPECT_GT(gpumem::driver_api::driver_calls("cuMemMap") - mapped_before, 4 * addresses / (2 * MiB))
      << "they have come to an end";
  EXPECT_LE(r.statistics().peak_reserved, most_live * 3 / 2);
  EXPECT_TRUE(is_consistent(r));
  for (auto* const each : live) r.deallocate(a, each);
}

TEST_F(pool_moves, page_size_grows_with_the_mapped_bytes) {
  gpumem::pool_resource r{device, {.initial_size = 768 * MiB, .effort = 1}};
  auto* const all = r.allocate(a, 768 * MiB);
  auto const before = made();
  auto* const more = r.allocate(a, 1 * MiB);
  EXPECT_EQ(r.statistics().reserved, 772 * MiB);
  EXPECT_EQ(made() - before, 1u);
  r.deallocate(a, more);
  r.deallocate(a, all);
}

TEST_F(pool_moves, free_pages_move_before_new_pages_are_created) {
  for (double const how : {0., 1.}) {
    EXPECT_TRUE(wait_for_device_bytes(0)) << "the last pool's memory is released later";
    pool r{device, {.effort = how}};
    auto const blocks = every_second_of_four(r);
    auto const before = made();
    auto* const large = r.allocate(a, 8 * MiB);
    EXPECT_EQ(r.statistics().peak_reserved, how == 0 ? 24 * MiB : 16 * MiB);
    EXPECT_EQ(made() - before, how == 0 ? 1u : 0u) << "a large page costs what a small one does";
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, large, 8 * MiB);
    for (auto* const each : blocks) r.deallocate(a, each, 4 * MiB);
  }
}

TEST_F(pool_moves, missing_pages_are_created_beside_moved_ones) {
  pool r{device, {.effort = 1}};
  auto const blocks = every_second_of_four(r);
  auto const before = made();
  auto* const large = r.allocate(a, 10 * MiB);
  EXPECT_EQ(r.statistics().reserved, 18 * MiB);
  EXPECT_EQ(made() - before, 1u);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 10 * MiB);
  for (auto* const each : blocks) r.deallocate(a, each, 4 * MiB);
}

TEST_F(pool_moves, page_moves_only_after_its_uses_are_complete) {
  pool r{device, {.effort = 1}};
  auto* const used = r.allocate(a, 4 * MiB);
  auto* const beside = r.allocate(a, 256);
  simulator::work(a, {simulator::write(used, 4 * MiB)});
  r.deallocate(a, used, 4 * MiB);
  auto* const large = r.allocate(b, 8 * MiB);
  EXPECT_EQ(r.statistics().reserved, 14 * MiB);
  a.synchronize();
  EXPECT_TRUE(simulator::take_findings().empty());
  r.deallocate(b, large, 8 * MiB);
  r.deallocate(a, beside, 256);
}

// A page that cannot be mapped at its new place is released, and the request gets new pages.
TEST_F(pool_moves, pages_are_created_if_none_can_move) {
  pool r{device, {.effort = 1}};
  auto const blocks = every_second_of_four(r);
  simulator::fail_call("cuMemSetAccess", 1, CUDA_ERROR_NOT_PERMITTED);
  auto* const large = r.allocate(a, 8 * MiB);
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  EXPECT_EQ(device.memory().total - device.memory().free, 16 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 8 * MiB);
  for (auto* const each : blocks) r.deallocate(a, each, 4 * MiB);
}

// At the end of the pool all four pages would be missing, in the hole only one.
TEST_F(pool_moves, growth_fills_the_hole_with_the_least_missing) {
  for (double const how : {0., 1.}) {
    pool r{device, {.effort = how}};
    auto* const below = r.allocate(a, 6 * MiB);
    auto* const gone = r.allocate(a, 6 * MiB);
    auto* const last = r.allocate(a, 2 * MiB);
    r.deallocate(a, gone, 6 * MiB);
    a.synchronize();
    EXPECT_EQ(r.trim(), 6 * MiB);
    r.deallocate(a, below, 6 * MiB);
    a.synchronize();
    auto* const large = r.allocate(a, 8 * MiB);
    EXPECT_EQ(large, below);
    EXPECT_EQ(r.statistics().reserved, 10 * MiB);
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, large, 8 * MiB);
    r.deallocate(a, last, 2 * MiB);
  }
}

// Stream b requests memory; the free end of the pool lies after memory that stream a freed.
TEST_F(pool_moves, freed_pages_before_a_growing_range_do_not_move) {
  gpumem::pool_resource r{device, {.effort = 1, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const below = r.allocate(a, 4 * MiB);
  auto* const end = r.allocate(b, 4 * MiB);
  r.deallocate(a, below, 4 * MiB);
  r.deallocate(b, end, 4 * MiB);
  a.synchronize();
  b.synchronize();
  auto* const large = r.allocate(b, 6 * MiB);
  EXPECT_EQ(large, end);
  r.deallocate(b, large, 6 * MiB);
}

// Complete memory is ready, but still coalesces with memory that the stream has just freed: no other stream could want
// it.
TEST_F(pool_moves, memory_freed_by_one_stream_becomes_one_range) {
  pool r{device, {.effort = 1}};
  auto* const below = r.allocate(a, 4 * MiB);
  auto* const above = r.allocate(a, 4 * MiB);
  auto* const end = r.allocate(a, 4 * MiB);
  r.deallocate(a, below, 4 * MiB);
  poll(r);
  poll(r);
  EXPECT_EQ(r.statistics().free_in_use, 0u) << "it is known to be complete";
  r.deallocate(a, above, 4 * MiB);
  EXPECT_EQ(r.statistics().free_ranges, 1u);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, end, 4 * MiB);
}

TEST_F(pool_moves, effort_outside_0_to_1_is_refused) {
  for (double const effort : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW((pool{device, {.effort = effort}}), std::invalid_argument);
    EXPECT_THROW((gpumem::pool_resource{gpumem::cuda_resource{device}, {.effort = effort}}), std::invalid_argument);
  }
}

} // namespace
