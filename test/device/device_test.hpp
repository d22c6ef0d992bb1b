// The base of every test on a real device: without one the test is skipped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stamp.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

class device_test : public ::testing::Test {
protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    stamp::load();
    ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&wrong_), sizeof *wrong_, cudaMemAttachGlobal), cudaSuccess);
    *wrong_ = 0;
  }
  void TearDown() override {
    if (!wrong_) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(*wrong_, 0u) << "words that other work has overwritten";
    EXPECT_EQ(cudaFree(wrong_), cudaSuccess);
  }
  /// Counts the wrong words that all check kernels found; each test expects 0 at its end.
  unsigned long long* wrong_ = nullptr;
};
