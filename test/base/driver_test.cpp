// The table of driver functions, and its counts of calls.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::driver_api::driver_calls;

TEST(driver, available_after_load) {
  EXPECT_TRUE(gpumem::driver_api::driver_available());
  EXPECT_TRUE(gpumem::driver_api::driver_alive());
  int version = 0;
  EXPECT_EQ(gpumem::driver_api::driver().driver_get_version(&version), CUDA_SUCCESS);
  EXPECT_GE(version, 12'000);
}

TEST(driver, counts_its_calls_by_name) {
  auto const all = driver_calls(), versions = driver_calls("cuDriverGetVersion"), ids = driver_calls("cuStreamGetId");
  int version = 0;
  for (int i = 0; i < 7; ++i) gpumem::driver_api::driver().driver_get_version(&version);
  EXPECT_EQ(driver_calls("cuDriverGetVersion"), versions + 7);
  EXPECT_EQ(driver_calls("cuStreamGetId"), ids);
  EXPECT_EQ(driver_calls(), all + 7);
  EXPECT_EQ(driver_calls("cuNoSuchFunction"), 0u);
}

TEST(driver, call_counts_match_those_of_the_simulated_device) {
  auto const mine = driver_calls("cuDeviceGetCount");
  gpumem::simulator::clear_driver_calls();
  for (int i = 0; i < 5; ++i) gpumem::device::count();
  EXPECT_EQ(driver_calls("cuDeviceGetCount") - mine, 5u);
  EXPECT_EQ(gpumem::simulator::report().driver_calls["cuDeviceGetCount"], 5u);
}

TEST(driver, counts_calls_of_running_and_ended_threads) {
  auto const before = driver_calls("cuDriverGetVersion");
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        int version = 0;
        for (int k = 0; k < 1000; ++k) gpumem::driver_api::driver().driver_get_version(&version);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(driver_calls("cuDriverGetVersion"), before + 12'000);
}

TEST(driver, check_throws_errors_as_exceptions) {
  EXPECT_NO_THROW(gpumem::driver_api::check(CUDA_SUCCESS, "nothing"));
  try {
    gpumem::driver_api::check(CUDA_ERROR_INVALID_VALUE, "what was done");
    ADD_FAILURE() << "nothing was thrown";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(std::string{e.what()}.starts_with("gpumem: what was done: ")) << "no path of a source: " << e.what();
  }
}

} // namespace
