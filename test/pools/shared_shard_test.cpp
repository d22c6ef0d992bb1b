// Large blocks, whose shard all threads share, and the memory of a thread that has met others.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <random>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "shard_fixture.hpp"

namespace {

using gpumem::pool_resource;
constexpr std::size_t MiB = std::size_t{1} << 20;
using shared_shard_test = gpumem_test::shard_fixture;

// Its memory serves each thread, and no shard has large blocks to spare.
TEST_F(shared_shard_test, large_blocks_of_all_threads_share_the_first_shard) {
  pool_resource r{device};
  std::array<void*, 2> blocks{};
  std::barrier together{2};
  make_shards(r, [&](int number) {
    auto const& on = number == 0 ? a : b;
    blocks[number] = r.allocate(on, 8 * MiB);
    r.deallocate(on, r.allocate(on, 3 * MiB), 3 * MiB);
    r.deallocate_sync(r.allocate_sync(MiB), MiB);
    together.arrive_and_wait();
  });
  auto& shards = engine_of(r).shards();
  for (auto* const each : blocks) EXPECT_EQ(shards.find_live(each).shard, shards.all().front().get());
  EXPECT_GE(r.statistics().shards, 2u);
  a.synchronize();
  b.synchronize();
  auto const reserved = r.statistics().reserved;
  auto* const reused = r.allocate(a, 3 * MiB);
  EXPECT_EQ(r.statistics().reserved, reserved) << "what the other thread has freed";
  r.deallocate(a, reused, 3 * MiB);
  for (auto* const each : blocks) r.deallocate(a, each, 8 * MiB);
}

// The device has completed all work before each call, so no result depends on the host's speed.
class immediate_shared_shard_test : public shared_shard_test {
protected:
  void SetUp() override { gpumem::simulator::reset({.devices = 2, .mode = gpumem::simulator::stepping::immediate}); }
  void TearDown() override {
    shared_shard_test::TearDown();
    gpumem::simulator::reset({.devices = 2, .mode = gpumem::simulator::stepping::manual});
  }
};

// A program of one thread: blocks of 1 to 32 MiB, at most 400 MiB of them live, whose sizes change with time.
TEST_F(immediate_shared_shard_test, contention_in_the_past_costs_one_thread_no_memory) {
  gpumem::pool_resource r{device, {.effort = 1}};
  auto const utilization = [&] {
    r.trim();
    r.reset_peaks();
    std::mt19937 random{7};
    std::vector<std::pair<void*, std::size_t>> blocks(200);
    std::size_t live = 0, peak = 0;
    for (unsigned i = 0; i < 6000; ++i) {
      auto& [p, bytes] = blocks[random() % blocks.size()];
      if (p) r.deallocate(a, p, bytes), live -= bytes;
      bytes = (1 + random() % 16) * (MiB / 16) << i / 1000 % 3 * 2;
      p = live + bytes <= 400 * MiB ? r.allocate(a, bytes) : nullptr;
      live += p ? bytes : 0;
      peak = std::max(peak, live);
    }
    for (auto const& [p, bytes] : blocks) {
      if (p) r.deallocate(a, p, bytes);
    }
    a.synchronize();
    return static_cast<double>(peak) / static_cast<double>(r.statistics().peak_reserved);
  };
  auto const before = utilization();
  make_shards(r, [](int) {});
  b.synchronize();
  EXPECT_GE(utilization(), before - .05) << "its small blocks have a shard of their own";
  r.trim();
  EXPECT_EQ(r.statistics().shards, 1u);
}

} // namespace
