// RMM's adaptors over gpumem's resources, and gpumem's over RMM's.
// SPDX-License-Identifier: Apache-2.0
#include "../../support/simulated.hpp"
#include "rmm_resources.hpp"

#include <cstddef>
#include <new>
#include <vector>

import gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class rmm_on_the_simulator : public simulated {
protected:
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(rmm_on_the_simulator, rmm_adaptors_work_over_a_pool) {
  gpumem::pool_resource pool{gpumem::cuda_resource{}};
  rmm_statistics const counted{limited_by_rmm(device_memory{pool}, 3 * mib)};
  auto resource = counted.resource();
  void* const p = resource.allocate(stream_, 2 * mib, 256);
  EXPECT_EQ(pool.statistics().live, 2 * mib);
  EXPECT_EQ(counted.bytes(), (rmm_statistics::counts{2 * mib, 2 * mib, 2 * mib}));
  EXPECT_THROW((void)resource.allocate(stream_, 2 * mib, 256), std::bad_alloc) << "beyond RMM's limit";
  resource.deallocate(stream_, p, 2 * mib, 256);
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(counted.allocations(), (rmm_statistics::counts{0, 1, 1}));
}

TEST_F(rmm_on_the_simulator, pool_works_over_rmm_adaptors) {
  rmm_statistics const counted{device_memory{gpumem::cuda_resource{}}};
  {
    gpumem::pool_resource pool{limited_by_rmm(counted.resource(), 8 * mib)};
    auto block = pool.acquire(stream_, 5 * mib).wait();
    EXPECT_GE(counted.bytes().now, static_cast<std::int64_t>(5 * mib));
    auto const more = pool.try_allocate(stream_, 5 * mib);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().reason, gpumem::outcome::exhausted) << "beyond RMM's limit";
    EXPECT_EQ(pool.statistics().live, 5 * mib);
  }
  stream_.synchronize();
}

TEST_F(rmm_on_the_simulator, adaptor_works_over_an_rmm_adaptor_over_a_pool) {
  gpumem::pool_resource pool{gpumem::cuda_resource{}};
  gpumem::statistics_adaptor outer{limited_by_rmm(device_memory{pool}, 4 * mib)};
  gpumem::buffer block{stream_, outer, mib};
  block.fill(std::byte{7});
  std::vector<unsigned char> found(mib);
  block.read(found.data(), mib);
  EXPECT_EQ(found, std::vector<unsigned char>(mib, 7));
  EXPECT_EQ(outer.counters().bytes.value, static_cast<std::int64_t>(mib));
  EXPECT_EQ(pool.statistics().live, mib);
}

} // namespace
