// Many requests that wait for limiting_adaptors on free-running threads, for the sanitizers.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
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
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "../core/waiter_races.hpp"
#include "limiting_stress.hpp"

namespace {

constexpr int requests = 1000;
constexpr std::size_t unit = 256;

// `make` returns a stack of adaptors.
template <class Make> void expect_nothing_lost(Make make) {
  test::limited_stacks stacks{.limit = 64 * unit, .least = 40 * unit};
  auto const shared = make(stacks);
  auto const sum = test::run_free_workers<std::stop_source>(shared, requests, unit);
  EXPECT_EQ(stacks.wrong_in(shared), "");
  EXPECT_GT(sum.granted, 0u);
}

TEST(limiting_race, random_requests_over_a_source_leave_no_bytes_counted) {
  expect_nothing_lost([](auto& stacks) { return stacks.over_source(); });
}
TEST(limiting_race, random_requests_over_a_small_source_leave_no_bytes_counted) {
  expect_nothing_lost([](auto& stacks) { return stacks.over_scarce_source(); });
}
TEST(limiting_race, random_requests_over_a_pool_leave_no_bytes_counted) {
  expect_nothing_lost([](auto& stacks) { return stacks.over_pool(); });
}
TEST(limiting_race, random_requests_over_a_second_limit_leave_no_bytes_counted) {
  expect_nothing_lost([](auto& stacks) { return stacks.over_limit_over_pool(); });
}

} // namespace
