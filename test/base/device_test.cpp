// Devices: ordinals, contexts, loss.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda/devices>

import gpumem;

namespace {

using gpumem::device;

TEST(device, unknown_ordinal_is_an_invalid_argument) {
  EXPECT_EQ(device::count(), 2);
  EXPECT_EQ(device{}.ordinal(), 0);
  EXPECT_EQ(device{1}.ordinal(), 1);
  EXPECT_EQ(device{1}, device{1});
  EXPECT_NE(device{0}, device{1});
  for (int ordinal : {-1, 2, 63, 64, 1 << 20}) {
    try {
      device const none{ordinal};
      ADD_FAILURE() << ordinal;
    } catch (std::invalid_argument const& e) {
      EXPECT_NE(std::string{e.what()}.find(std::to_string(ordinal)), std::string::npos);
    }
  }
}

TEST(device, known_device_is_constructed_without_a_driver_call) {
  device const first{0}, second{1};
  auto const before = gpumem::driver_api::driver_calls();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(device{i % 2}.ordinal(), i % 2);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), before);
}

TEST(device, many_threads_construct_the_same_device) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([i] { EXPECT_NE(device{i % 2}.context(), nullptr); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuDevicePrimaryCtxRetain"), 2u); // once per device and process
}

TEST(device, converts_to_and_from_device_ref) {
  cuda::device_ref const ref = device{1};
  EXPECT_EQ(ref.get(), 1);
  EXPECT_EQ(device{ref}, device{1});
}

TEST(device, current_device_is_the_first_without_a_context) {
  std::thread{[] {
    EXPECT_EQ(device::current(), device{0}); // as in the CUDA runtime
    CUcontext now = nullptr;
    gpumem::driver_api::driver().ctx_get_current(&now);
    EXPECT_EQ(now, device{0}.context());
  }}.join();
}

TEST(device, guard_makes_a_device_current_for_a_scope) {
  std::thread{[] {
    {
      gpumem::device_guard const scope{device{1}};
      EXPECT_EQ(device::current(), device{1});
      {
        gpumem::device_guard const inner{device{0}};
        EXPECT_EQ(device::current(), device{0});
      }
      EXPECT_EQ(device::current(), device{1});
    }
    CUcontext now = nullptr;
    gpumem::driver_api::driver().ctx_get_current(&now);
    EXPECT_EQ(now, nullptr); // unchanged
  }}.join();
}

TEST(device, reports_its_total_and_free_memory) {
  auto const before = device{1}.memory();
  EXPECT_GT(before.total, 0u);
  EXPECT_LE(before.free, before.total);
}

TEST(device, keeps_the_first_error_that_lost_it) {
  EXPECT_FALSE(device{1}.lost());
  device{1}.mark_lost(CUDA_ERROR_ILLEGAL_ADDRESS);
  device{1}.mark_lost(CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(device{1}.lost());
  EXPECT_EQ(device{1}.lost_error(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(device{0}.lost());
}

TEST(device, only_sticky_errors_lose_it) {
  for (auto error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ECC_UNCORRECTABLE,
                     CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED}) {
    EXPECT_TRUE(gpumem::driver_api::is_sticky(error)) << error;
  }
  for (auto error : {CUDA_SUCCESS, CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                     CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE,
                     CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_NOT_FOUND}) {
    EXPECT_FALSE(gpumem::driver_api::is_sticky(error)) << error;
  }
}

} // namespace
