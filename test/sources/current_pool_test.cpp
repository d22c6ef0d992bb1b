// An own driver pool as the current one of its device.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <optional>

#include <cuda.h>
#include <dlfcn.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;

constexpr std::size_t mib = std::size_t{1024} * 1024;

CUmemoryPool current_pool(int ordinal = 0) {
  return gpumem::async_resource_view::current(gpumem::device{ordinal}).handle();
}
CUmemoryPool default_pool(int ordinal = 0) { return gpumem::async_resource_view{gpumem::device{ordinal}}.handle(); }

class current_pool_test : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(current_pool(0), default_pool(0));
    EXPECT_EQ(current_pool(1), default_pool(1));
    simulated::TearDown();
  }
  /// Calls the driver as a program does that knows nothing of gpumem.
  static CUdeviceptr allocate_by_driver(CUstream on, std::size_t bytes) {
    auto* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto* const call = reinterpret_cast<decltype(&::cuMemAllocAsync)>(dlsym(library, "cuMemAllocAsync"));
    CUdeviceptr p = 0;
    EXPECT_EQ(call(&p, bytes, on), CUDA_SUCCESS);
    return p;
  }
};

TEST_F(current_pool_test, driver_allocates_from_the_current_pool) {
  gpumem::async_resource pool;
  gpumem::stream s{gpumem::device{0}};
  pool.make_current();
  EXPECT_EQ(current_pool(), pool.handle());
  EXPECT_EQ(current_pool(1), default_pool(1)) << "another device is changed";
  auto const p = allocate_by_driver(s.get(), mib);
  EXPECT_GE(pool.usage().used, mib);
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(gpumem::driver_api::driver().mem_free_async(p, s.get()), CUDA_SUCCESS);
  s.synchronize();
}

TEST_F(current_pool_test, default_pool_can_be_made_current_again) {
  gpumem::async_resource pool;
  gpumem::stream s{gpumem::device{0}};
  pool.make_current();
  gpumem::reset_current_pool(gpumem::device{0});
  EXPECT_EQ(current_pool(), default_pool());
  auto const p = allocate_by_driver(s.get(), mib);
  EXPECT_EQ(pool.usage().used, 0u);
  EXPECT_EQ(gpumem::driver_api::driver().mem_free_async(p, s.get()), CUDA_SUCCESS);
  s.synchronize();
}

TEST_F(current_pool_test, end_of_the_pool_makes_the_default_pool_current) {
  std::optional<gpumem::async_resource> pool{std::in_place, gpumem::device{1}};
  auto copy = *pool;
  pool->make_current();
  pool.reset();
  EXPECT_EQ(current_pool(1), copy.handle()) << "a copy still refers to it";
}

TEST_F(current_pool_test, default_pool_is_current_even_if_the_pool_cannot_be_destroyed) {
  gpumem::stream s{gpumem::device{0}};
  {
    gpumem::async_resource pool;
    pool.make_current();
    pool.deallocate(s, pool.allocate(s, mib), mib);
    simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED); // the frees cannot be awaited
    auto const destroyed = gpumem::driver_api::driver_calls("cuMemPoolDestroy");
    pool = gpumem::async_resource{};
    EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemPoolDestroy"), destroyed);
    EXPECT_EQ(current_pool(), default_pool());
  }
  s.synchronize();
}

TEST_F(current_pool_test, end_of_a_pool_leaves_another_current_pool) {
  gpumem::async_resource newer;
  {
    gpumem::async_resource older;
    older.make_current();
    newer.make_current();
  }
  EXPECT_EQ(current_pool(), newer.handle());
}

TEST_F(current_pool_test, driver_errors_are_reported) {
  gpumem::async_resource pool;
  simulator::fail_call("cuDeviceSetMemPool", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW(pool.make_current(), gpumem::cuda_error);
  simulator::fail_call("cuDeviceSetMemPool", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW(gpumem::reset_current_pool(gpumem::device{0}), gpumem::cuda_error);
}

} // namespace
