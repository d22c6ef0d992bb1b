// A fixture for the functions that PyTorch's C++ calls, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>
#include <gpumem/simulator.hpp>

#include <cuda.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>

namespace simulator = gpumem::simulator;
using std::chrono::milliseconds;
using testing::HasSubstr;

inline constexpr std::size_t mib = std::size_t{1} << 20;

/// Makes the device current to this thread, and makes streams on it.
class torch : public testing::Test {
protected:
  static void SetUpTestSuite() { simulator::load({.devices = 16, .mode = simulator::stepping::manual}); }
  void SetUp() override { simulator::take_findings(); }
  void TearDown() override {
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
  }

  static void make_current(int device) {
    CUcontext context = nullptr;
    ASSERT_EQ(cuInit_(0), CUDA_SUCCESS);
    ASSERT_EQ(driver<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, device), CUDA_SUCCESS);
    ASSERT_EQ(driver<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  }
  static CUstream make_stream(int device) {
    make_current(device);
    CUstream stream = nullptr;
    EXPECT_EQ(driver<decltype(&cuStreamCreate)>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  static std::uint64_t calls() {
    std::uint64_t sum = 0;
    for (auto const& [name, count] : simulator::report().driver_calls) sum += count;
    return sum;
  }
  static CUresult driver_synchronize() { return driver<CUresult (*)()>("cuCtxSynchronize")(); }
  static void destroy(CUstream stream) {
    EXPECT_EQ(driver<decltype(&cuStreamDestroy)>("cuStreamDestroy_v2")(stream), CUDA_SUCCESS);
  }

  static gpumem_statistics statistics(int device) {
    gpumem_statistics told{};
    told.size = sizeof told;
    gpumem_pool* pool = nullptr;
    EXPECT_EQ(gpumem_torch_pool(device, &pool), GPUMEM_GRANTED);
    if (pool) EXPECT_EQ(gpumem_read_statistics(pool, &told), GPUMEM_GRANTED);
    return told;
  }

  /// Allocates a block as PyTorch does and tells the checker; to the checker it is a write of the whole block by its
  /// stream.
  void* allocate(std::size_t bytes, int device, CUstream stream) {
    auto* const pointer = gpumem_torch_allocate(bytes, device, stream);
    simulator::detail::allocated(judge_, stream, false, pointer, bytes);
    return pointer;
  }
  void free(void* pointer, std::size_t bytes, int device, CUstream stream) {
    simulator::detail::freed(judge_, stream, false, pointer, bytes);
    gpumem_torch_free(pointer, bytes, device, stream);
  }

  template <class Function> static Function driver(char const* name);

private:
  static CUresult cuInit_(unsigned flags) { return driver<decltype(&cuInit)>("cuInit")(flags); }
  std::uint64_t judge_ = simulator::detail::new_owner();
};

template <class Function> Function torch::driver(char const* name) {
  auto const lookup = reinterpret_cast<Function>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
  if (!lookup) throw std::runtime_error{name};
  return lookup;
}

/// Allocates and frees as PyTorch's allocator class does.
class torch_blocks : public torch {
protected:
  static gpumem_torch_statistics figures(int device) {
    gpumem_torch_statistics now{};
    now.size = sizeof now;
    EXPECT_EQ(gpumem_torch_read_statistics(device, &now), GPUMEM_GRANTED) << gpumem_last_error();
    return now;
  }
  static void* allocate_block(std::size_t bytes, int device, CUstream stream,
                              int promises = GPUMEM_TORCH_STREAM_LIVES + GPUMEM_TORCH_DEVICE_CURRENT) {
    void* pointer = nullptr;
    EXPECT_EQ(gpumem_torch_allocate_block(bytes, device, stream, promises, &pointer), GPUMEM_GRANTED)
        << gpumem_last_error();
    return pointer;
  }
  static void free_block(void* pointer) {
    EXPECT_EQ(gpumem_torch_free_block(pointer, nullptr), GPUMEM_GRANTED) << gpumem_last_error();
  }
  /// Runs the devices meanwhile, since gpumem waits for work that keeps memory.
  static void empty_cache() {
    std::atomic<bool> over{false};
    std::thread device{[&] {
      do { // at least once, also if the thread starts late
        simulator::run_until_idle();
      } while (!over);
    }};
    gpumem_torch_empty_cache();
    over = true;
    device.join();
  }
  static void expect(gpumem_torch_figure const& figure, gpumem_torch_figure const& expected) {
    EXPECT_EQ(figure.current, expected.current);
    EXPECT_EQ(figure.peak, expected.peak);
    EXPECT_EQ(figure.allocated, expected.allocated);
    EXPECT_EQ(figure.freed, expected.freed);
  }
};
