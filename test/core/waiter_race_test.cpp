// Random requests on free-running threads, for the sanitizers.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
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
#include "waiter_races.hpp"

namespace {

TEST(waiter_race, random_requests_leave_no_bytes_counted) {
  constexpr int members = 4, requests = 4000;
  gpumem::device const device{0};
  test::parking_resource resource{512};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < members; ++i) streams.emplace_back(device);
  std::array<test::stress_counts, members> counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      auto const at = static_cast<std::size_t>(i);
      test::stress_worker<std::stop_source> member{resource, streams[at], at + 1, [] { std::this_thread::yield(); }};
      member.run(requests);
      counts[at] = member.counts();
    });
  }
  for (auto& thread : threads) thread.join();
  auto const sum = test::sum_of(counts);
  EXPECT_EQ(resource.state().used(), 0u);
  EXPECT_TRUE(resource.state().idle());
  EXPECT_GT(sum.granted, 0u);
  EXPECT_GT(sum.stopped, 0u);
  EXPECT_GT(sum.late, 0u);
  EXPECT_GT(sum.parked, 0u);
}

} // namespace
