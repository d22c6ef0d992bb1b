// A fixture on two simulated devices for programs on the runtime.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace simulator = gpumem::simulator;

// The wheels of CUDA have no cuda_profiler_api.h.
extern "C" {
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
}

/// Steps the devices only by hand. The checker must report nothing that a test does not take.
class runtime_device : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load(); }
  void SetUp() override {
    simulator::options how;
    how.devices = 2;
    how.mode = simulator::stepping::manual;
    how.keep_objects = false;
    simulator::reset(how);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    cudaGetLastError();
  }
  void TearDown() override { EXPECT_NO_THROW(simulator::expect_silent()); }

  static char* memory(std::size_t bytes) {
    void* made = nullptr;
    EXPECT_EQ(cudaMalloc(&made, bytes), cudaSuccess);
    return static_cast<char*>(made);
  }

  template <class Function> static Function* driver_function(char const* name) {
    return reinterpret_cast<Function*>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name));
  }
};
