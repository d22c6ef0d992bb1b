// How many addresses pools over pages reserve.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <cuda.h>

#include <cstddef>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = 1024 * MiB, TiB = 1024 * GiB;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

class pool_addresses : public simulated {
protected:
  static void SetUpTestSuite() { simulator::load({.capacity = device_bytes}); }
  static std::size_t reserved() { return simulator::report().bytes_reserved; }
  void allocate_and_free(pool& from, std::size_t bytes) {
    from.deallocate(stream, from.allocate(stream, bytes), bytes);
  }

  static constexpr std::size_t device_bytes = 141 * GiB;
  gpumem::stream stream{gpumem::device{0}};
};

TEST_F(pool_addresses, two_thousand_small_pools_fit_a_large_device) {
  std::vector<pool> pools;
  for (int i = 0; i < 2000; ++i) {
    pools.emplace_back(gpumem::device{0});
    allocate_and_free(pools.back(), MiB);
  }
  EXPECT_LE(reserved(), 80 * TiB);
}

TEST_F(pool_addresses, addresses_follow_the_limit) {
  pool r{gpumem::device{0}, {.limit = GiB / 4}};
  allocate_and_free(r, GiB / 8);
  EXPECT_LE(reserved(), 16 * GiB);
  r.set_limit(60 * GiB);
  allocate_and_free(r, 50 * GiB);
  EXPECT_GE(reserved(), device_bytes);
}

// Where the driver refuses what the pool wants, it asks for half of that.
TEST_F(pool_addresses, pool_takes_fewer_addresses_where_the_driver_refuses) {
  pool r{gpumem::device{0}};
  allocate_and_free(r, MiB);
  auto const before = reserved();
  simulator::fail_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  allocate_and_free(r, 100 * GiB);
  EXPECT_EQ(reserved() - before, 4 * device_bytes);
}

} // namespace
