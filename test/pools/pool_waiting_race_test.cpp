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
  constexpr std::size_t unit = 256;
  pool shared{gpumem::device{0}, {.limit = 64 * unit, .pages = false}};
  auto const sum = test::run_free_workers<std::stop_source>(shared, 1000, unit, use);
  EXPECT_EQ(shared.statistics().live, 0u);
  EXPECT_EQ(shared.statistics().allocated, 0u);
  EXPECT_GT(sum.granted, 0u);
  EXPECT_TRUE(gpumem::simulator::take_findings().empty());
}

} // namespace
