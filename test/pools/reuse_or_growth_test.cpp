// When a pool reuses memory of other streams and when it grows: below its limit, and where addresses or the device's
// memory end.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

import gpumem;

namespace {

using gpumem_test::freed_in_use;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class reuse_or_growth : public gpumem_test::simulated_test {
protected:
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
};

TEST_F(reuse_or_growth, filling_a_pool_makes_no_poll) {
  gpumem::pool_resource r{device};
  std::vector<void*> blocks(128);
  for (auto& each : blocks) each = r.allocate(a, 8 * MiB);
  for (auto* const each : blocks) r.deallocate(a, each, 8 * MiB);
  a.synchronize();
  auto const reserved = r.statistics().reserved;
  r.deallocate(b, r.allocate(b, 512 * MiB), 512 * MiB); // records an event if the pool has grown
  simulator::run_until_idle();
  auto const grown = r.statistics().reserved;
  EXPECT_LE(grown, reserved + 512 * MiB) << "no more than requested";
  for (auto* const on : {&a, &b, &a, &b}) {
    r.deallocate(*on, r.allocate(*on, 512 * MiB), 512 * MiB);
    simulator::run_until_idle();
  }
  EXPECT_EQ(r.statistics().reserved, grown) << "one poll sees the completed work";
}

// Eight streams share memory for four.
TEST_F(reuse_or_growth, streams_reuse_memory_of_others_where_the_addresses_or_the_device_end) {
  constexpr std::size_t bytes = 8 * MiB, left = 32 * MiB;
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 8; ++i) streams.emplace_back(device);
  auto const creations = [] { return gpumem::driver_api::driver_calls("cuMemCreate"); };
  gpumem_test::running_device const running; // so that waits of the host end
  auto const rounds = [&](auto& r) {
    auto const before = creations();
    for (int i = 0; i < 200; ++i) {
      freed_in_use(r, streams[static_cast<std::size_t>(i) % streams.size()], bytes);
      simulator::run_until_idle();
    }
    EXPECT_EQ(r.statistics().failures, 0u);
    return creations() - before;
  };
  auto const used_before = device_bytes();
  {
    gpumem::pool_resource confined{device, {}, {.address_space = left}};
    EXPECT_LE(rounds(confined), left / MiB) << "pages for all addresses twice, not pages for each round";
    EXPECT_LE(confined.statistics().peak_reserved, left);
  }
  ASSERT_TRUE(wait_for_device_bytes(used_before));

  gpumem::pool_resource first{device, {}, {.address_space = 2 * simulator::options{}.capacity}};
  first.reserve(simulator::options{}.capacity - left - used_before);
  gpumem::pool_resource last{device};
  EXPECT_LE(rounds(last), 100u) << "after a refusal the device is not asked at every miss";
  EXPECT_LE(last.statistics().peak_reserved, left);
}

// After one failure, requests that fail make few driver calls, however many there are. A request succeeds as soon as
// there is memory.
TEST_F(reuse_or_growth, requests_that_fail_on_a_full_device_make_few_driver_calls) {
  constexpr int failing = 100;
  auto const used_before = device_bytes();
  gpumem::pool_resource other{device, {}, {.address_space = 2 * simulator::options{}.capacity}};
  other.reserve(simulator::options{}.capacity - 64 * MiB - used_before);
  gpumem::pool_resource r{device};
  auto* const first = r.allocate(b, 32 * MiB);
  auto const calls = [] {
    std::array const names{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuEventQuery", "cuStreamQuery"};
    std::array<std::uint64_t, names.size()> counts{};
    std::ranges::transform(names, counts.begin(), [](auto* each) { return gpumem::driver_api::driver_calls(each); });
    return counts;
  };
  EXPECT_FALSE(r.try_allocate(a, 256 * MiB)); // learns that the device is full
  auto const before = calls();
  for (int i = 0; i < failing; ++i) EXPECT_FALSE(r.try_allocate(i % 2 == 0 ? a : b, 256 * MiB));
  auto const after = calls();
  auto const count = [&](std::size_t i) { return after[i] - before[i]; };
  EXPECT_LE(count(0), 4u * failing) << "pages";
  EXPECT_GE(count(0), 1u * failing) << "the device is asked each time: other users may have freed memory";
  EXPECT_EQ(count(1) + count(2), 0u) << "mapped";
  EXPECT_LE(count(3) + count(4), 16u * failing) << "polls";

  EXPECT_GE(other.trim(other.statistics().reserved - 1024 * MiB), 512 * MiB);
  for (int i = 0; i < 2; ++i) {
    auto const start = calls();
    auto const got = r.try_allocate(a, 256 * MiB);
    ASSERT_TRUE(got);
    auto const end = calls();
    EXPECT_GT(end[1] - start[1], 1u) << "several pages";
    EXPECT_EQ(end[0] - start[0], end[1] - start[1] + (i == 0)) << "all together only the first time";
    EXPECT_EQ(device_bytes(), used_before + other.statistics().reserved + r.statistics().reserved);
    r.deallocate(a, *got, 256 * MiB);
    a.synchronize();
    r.trim();
  }
  r.deallocate(b, first, 32 * MiB);
}

// Moving pages would take memory from one stream to give it to another.
TEST_F(reuse_or_growth, streams_that_do_not_share_reserve_their_own_memory) {
  gpumem::stream c{device}, d{device};
  std::array const streams{&a, &b, &c, &d};
  gpumem::pool_resource r{device, {.effort = 0, .cross_stream = gpumem::reuse_policy::ordered}};
  for (int i = 0; i < 80; ++i) {
    freed_in_use(r, *streams[static_cast<std::size_t>(i) % streams.size()], 8 * MiB);
    simulator::run_until_idle();
  }
  EXPECT_EQ(r.statistics().peak_reserved, streams.size() * 8 * MiB);
  EXPECT_EQ(r.statistics().upstream_allocations, streams.size());
}

} // namespace
