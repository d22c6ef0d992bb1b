// Random requests for a pool's memory on free-running threads, for the sanitizers.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "../core/waiter_races.hpp"

namespace {

using pool = gpumem::pool_resource<gpumem::cuda_resource>;

void use(gpumem::allocation const& block) {
  if (block.bytes() == 0) return;
  gpumem::simulator::work(block.stream(), {gpumem::simulator::write(block.data(), block.bytes())});
}

TEST(pool_waiting_race, random_requests_leave_no_bytes_live) {
  constexpr int members = 4, requests = 2000;
  constexpr std::size_t unit = 256;
  gpumem::device const device{0};
  pool shared{device, {.limit = 64 * unit, .pages = false}};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < members; ++i) streams.emplace_back(device);
  std::array<test::stress_counts, members> counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      auto const at = static_cast<std::size_t>(i);
      auto const pause = [] { std::this_thread::yield(); };
      test::stress_worker<std::stop_source, pool> member{shared, streams[at], at + 1, pause, unit, use};
      member.run(requests);
      counts[at] = member.counts();
    });
  }
  for (auto& thread : threads) thread.join();
  auto const sum = test::sum_of(counts);
  EXPECT_EQ(shared.statistics().live, 0u);
  EXPECT_EQ(shared.statistics().allocated, 0u);
  EXPECT_GT(sum.granted, 0u);
  EXPECT_TRUE(gpumem::simulator::take_findings().empty());
}

} // namespace
