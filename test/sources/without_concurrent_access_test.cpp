// Devices to which managed memory cannot be prefetched, and which cannot access memory of the host's allocator.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include <cuda.h>

import gpumem;

namespace {

class without_concurrent_access : public testing::Test {
protected:
  static void SetUpTestSuite() { gpumem::simulator::load({.concurrent_managed_access = false}); }
};

TEST_F(without_concurrent_access, prefetch_is_refused_and_allocation_works) {
  gpumem::stream s{gpumem::device{0}};
  gpumem::prefetch_adaptor subject{gpumem::managed_resource{}};
  void* const p = subject.allocate(s, 4096);
  EXPECT_EQ(subject.refused(), 1u);
  EXPECT_FALSE(gpumem::prefetch(p, 4096, gpumem::memory_location::host(), s));
  subject.deallocate(s, p, 4096);
  EXPECT_FALSE(gpumem::device{0}.lost());
}

TEST_F(without_concurrent_access, memory_cannot_prefer_the_device) {
  gpumem::managed_resource managed;
  void* const p = managed.allocate_sync(4096);
  auto const prefer = [p](CUmemLocation where) {
    return gpumem::driver_api::driver().mem_advise(reinterpret_cast<CUdeviceptr>(p), 4096,
                                                   CU_MEM_ADVISE_SET_PREFERRED_LOCATION, where);
  };
  EXPECT_EQ(prefer({CU_MEM_LOCATION_TYPE_DEVICE, 0}), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(prefer({CU_MEM_LOCATION_TYPE_HOST, 0}), CUDA_SUCCESS);
  managed.deallocate_sync(p, 4096);
}

TEST_F(without_concurrent_access, system_memory_is_refused_by_name) {
  EXPECT_FALSE(gpumem::system_resource::supported(gpumem::device{0}));
  try {
    gpumem::system_resource const refused;
    FAIL() << "the device has no access";
  } catch (gpumem::cuda_error const& e) {
    EXPECT_EQ(static_cast<int>(e.status()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_NE(std::string{e.what()}.find("device 0 cannot access memory of the host's allocator"), std::string::npos)
        << e.what();
  }
  EXPECT_FALSE(gpumem::device{0}.lost());
}

} // namespace
