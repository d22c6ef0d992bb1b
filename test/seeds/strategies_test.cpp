// When memory really goes back to the driver: after each free, after a pool's end, or as the driver pleases.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>

import gpumem;

namespace {

using namespace gpumem::literals;

class strategies : public simulated {
protected:
  std::uint64_t frees() const { return gpumem::driver_api::driver_calls("cuMemFree"); }
  gpumem::cuda_resource const cuda_{gpumem::device{0}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(strategies, cuda_resource_returns_memory_at_each_free) {
  auto const before = frees();
  for (int i = 0; i < 5; ++i) {
    auto cuda = cuda_;
    cuda.deallocate(stream_, cuda.allocate(stream_, 1_MiB), 1_MiB);
  }
  EXPECT_EQ(frees() - before, 5u);
}

TEST_F(strategies, pool_returns_memory_at_its_end) {
  auto const before = frees();
  auto const held = device_bytes();
  {
    gpumem::pool_resource pool{cuda_};
    for (int i = 0; i < 5; ++i) pool.deallocate(stream_, pool.allocate(stream_, 1_MiB), 1_MiB);
    EXPECT_EQ(frees() - before, 0u);
    stream_.synchronize();
    EXPECT_TRUE(pool.synchronize(std::chrono::seconds{10}));
  }
  EXPECT_EQ(device_bytes(), held);
}

// Small blocks and large ones in one pool, whatever their order.
TEST_F(strategies, small_and_large_blocks_can_share_a_pool) {
  gpumem::pool_resource pool{cuda_, {.initial_size = 64_MiB}};
  for (std::size_t const bytes : {256_KiB, 16_MiB, 1_KiB, 32_MiB, std::size_t{256}}) {
    pool.deallocate(stream_, pool.allocate(stream_, bytes), bytes);
  }
  EXPECT_EQ(pool.statistics().upstream_allocations, 1u);
}

} // namespace
