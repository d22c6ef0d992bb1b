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
  test::parking_resource resource{512};
  auto const sum = test::run_free_workers<std::stop_source>(resource, 2000);
  EXPECT_EQ(resource.state().used(), 0u);
  EXPECT_TRUE(resource.state().idle());
  EXPECT_GT(sum.granted, 0u);
  EXPECT_GT(sum.stopped, 0u);
  EXPECT_GT(sum.late, 0u);
  EXPECT_GT(sum.parked, 0u);
}

} // namespace
