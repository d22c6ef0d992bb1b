// gpumem's resources over RMM's on a real device; skipped without one.
// SPDX-License-Identifier: Apache-2.0
#include "rmm_resources.hpp"

#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

import gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class rmm_on_device : public testing::Test {
protected:
  void SetUp() override {
    if (!gpumem::simulator::available_real_device()) GTEST_SKIP() << "there is no device";
  }
  /// Writes through a buffer of the resource and reads the data back.
  template <class Resource> static void use(Resource const& resource) {
    gpumem::device_guard const scope{gpumem::device{0}};
    gpumem::stream on{gpumem::device{0}};
    for (int i = 0; i < 100; ++i) {
      gpumem::buffer block{on, resource, mib};
      block.fill(static_cast<std::byte>(i));
      std::vector<unsigned char> found(mib);
      block.read(found.data(), mib);
      ASSERT_EQ(found, std::vector<unsigned char>(mib, static_cast<unsigned char>(i)));
    }
  }
};

TEST_F(rmm_on_device, pool_works_over_rmm_cuda_memory) {
  gpumem::pool_resource const pool{cuda_memory_of_rmm()};
  use(pool);
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_GT(pool.statistics().reserved, 0u);
}

TEST_F(rmm_on_device, rmm_pool_works_under_an_adaptor_and_over_cuda_resource) {
  use(gpumem::statistics_adaptor{pool_of_rmm(device_memory{gpumem::cuda_resource{}}, 64 * mib)});
}

TEST_F(rmm_on_device, rmm_adaptor_works_over_a_pool_over_rmm_cuda_memory) {
  gpumem::pool_resource const pool{cuda_memory_of_rmm()};
  rmm_statistics const counted{device_memory{pool}};
  use(counted.resource());
  EXPECT_EQ(counted.bytes().now, 0);
  EXPECT_EQ(counted.allocations().total, 100);
}

} // namespace
