// Host memory on a machine without a driver: the program loads neither the simulated driver nor a real one.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <driver_types.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>

import gpumem;

namespace {

TEST(without_driver, host_memory_is_allocated_and_freed) {
  if (gpumem::driver_api::driver_available()) GTEST_SKIP() << "this machine has a driver";
  gpumem::statistics_adaptor counted{gpumem::host_resource{}};
  void* const p = counted.allocate_sync(4096, 4096);
  std::memset(p, 1, 4096);
  EXPECT_EQ(counted.counters().bytes.value, 4096);
  counted.deallocate_sync(p, 4096, 4096);
  EXPECT_EQ(counted.counters().bytes, (gpumem::counter{0, 4096, 4096}));
  EXPECT_THROW((void)counted.allocate_sync(4096, 3), std::invalid_argument);
  EXPECT_THROW((void)counted.allocate_sync(std::size_t{1} << 55), gpumem::out_of_memory);
}

TEST(without_driver, stream_cannot_be_identified) {
  if (gpumem::driver_api::driver_available()) GTEST_SKIP() << "this machine has a driver";
  gpumem::host_resource subject;
  EXPECT_THROW((void)subject.allocate(gpumem::stream_ref{cudaStream_t{}}, 8), gpumem::cuda_error);
  int somebodys = 0;
  EXPECT_FALSE(subject.try_allocate(gpumem::stream_ref{reinterpret_cast<cudaStream_t>(&somebodys)}, 8));
  EXPECT_THROW(gpumem::cuda_resource{}, gpumem::cuda_error);
}

} // namespace
