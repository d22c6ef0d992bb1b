// A machine without a driver: every call reports this, and none crashes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <cuda.h>

import gpumem;

namespace {

class no_driver : public testing::Test {
protected:
  void SetUp() override {
    if (gpumem::driver_api::driver_available()) GTEST_SKIP() << "this machine has a driver";
  }
};

TEST_F(no_driver, missing_library_is_named) {
  for (int twice = 0; twice < 2; ++twice) {
    try {
      gpumem::driver_api::driver();
      ADD_FAILURE() << "there is a driver after all";
    } catch (gpumem::cuda_error const& e) {
      std::string const text = e.what();
      EXPECT_NE(text.find("libcuda.so.1"), std::string::npos) << text;
      EXPECT_NE(text.find("gpumem::simulator::load()"), std::string::npos) << text;
      EXPECT_TRUE(text.starts_with("gpumem: no CUDA driver: ")) << "no path of a source: " << text;
    }
  }
}

TEST_F(no_driver, devices_and_streams_throw) {
  EXPECT_THROW(gpumem::device::count(), gpumem::cuda_error);
  EXPECT_THROW(gpumem::device{0}, gpumem::cuda_error);
  EXPECT_THROW(gpumem::device::current(), gpumem::cuda_error);
  EXPECT_THROW(gpumem::extend::identify(gpumem::stream_ref{CUstream{}}), gpumem::cuda_error);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), 0u);
}

TEST_F(no_driver, executors_and_coroutines_still_run) {
  auto body = []() -> gpumem::task<int> { co_return 1; };
  EXPECT_EQ(gpumem::sync_wait(body()), 1);
  EXPECT_THROW(gpumem::sync_wait(gpumem::completion(gpumem::stream_ref{CUstream{}})), gpumem::cuda_error);
}

TEST_F(no_driver, process_with_a_library_thread_ends) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        gpumem::default_executor();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

} // namespace
