// A heap for kernels on a lost device: calls fail, and what it gives back makes no driver call. A device stays lost for
// the rest of the process.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/device_heap.hpp>
#include <gpumem/pool_options.hpp>

#include <cstddef>

import gpumem;
import gpumem.device_heap;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
using device_heap_lost = gpumem_test::simulated_test;

TEST_F(device_heap_lost, calls_fail_and_the_rest_goes_without_the_driver) {
  gpumem::device const device{0};
  gpumem::stream a{device};
  gpumem::pool_resource pool{device};
  {
    gpumem::device_heap heap{pool, a, {.bytes = 8 * MiB, .reserve = 1024 * MiB}};
    gpumem::simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(heap.try_grow_to(a, 256 * MiB).error().reason, gpumem::outcome::device_lost);
    EXPECT_TRUE(device.lost());
    EXPECT_THROW(gpumem::sync_wait(heap.grow_to(a, 256 * MiB)), gpumem::cuda_error);
    EXPECT_THROW(gpumem::sync_wait(heap.statistics(a)), gpumem::cuda_error);
    EXPECT_THROW(heap.reset(a), gpumem::cuda_error);
    EXPECT_EQ(heap.bytes(), 8 * MiB);
  }
  EXPECT_EQ(pool.statistics().lent, 0u);
  gpumem::simulator::reset();
}

} // namespace
