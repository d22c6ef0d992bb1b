// A machine without a driver: everything says so, and nothing breaks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

import gpumem;

namespace {

class no_driver : public testing::Test {
protected:
  void SetUp() override {
    if (gpumem::driver_available()) GTEST_SKIP() << "this machine has a driver";
  }
};

TEST_F(no_driver, is_told_by_name) {
  for (int twice = 0; twice < 2; ++twice) {
    try {
      gpumem::driver();
      ADD_FAILURE() << "there is a driver after all";
    } catch (gpumem::cuda_error const& e) {
      EXPECT_NE(std::string{e.what()}.find("libcuda.so.1"), std::string::npos) << e.what();
    }
  }
}

TEST_F(no_driver, refuses_devices_and_streams_by_exception) {
  EXPECT_THROW(gpumem::device::count(), gpumem::cuda_error);
  EXPECT_THROW(gpumem::device{0}, gpumem::cuda_error);
  EXPECT_THROW(gpumem::device::current(), gpumem::cuda_error);
  EXPECT_THROW(gpumem::identify(gpumem::stream_ref{CUstream{}}), gpumem::cuda_error);
  EXPECT_EQ(gpumem::driver_calls(), 0u);
}

TEST_F(no_driver, leaves_executors_and_coroutines_at_work) {
  auto body = []() -> gpumem::task<int> { co_return 1; };
  EXPECT_EQ(gpumem::sync_wait(body()), 1);
  EXPECT_THROW(gpumem::sync_wait(gpumem::completion(gpumem::stream_ref{CUstream{}})), gpumem::cuda_error);
}

TEST_F(no_driver, lets_a_process_end_that_started_the_library_thread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        gpumem::default_executor();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

} // namespace
