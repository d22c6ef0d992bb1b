// A buffer on a lost device: requests fail, and what it gives back makes no driver call. A device stays lost for the
// rest of the process.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>

import gpumem;
import gpumem.growable;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
using growable_lost = gpumem_test::simulated_test;

TEST_F(growable_lost, requests_fail_and_the_rest_goes_without_the_driver) {
  gpumem::device const device{0};
  gpumem::stream a{device};
  gpumem::pool_resource pool{device};
  {
    gpumem::growable_buffer kv{pool, a, {.reserve = 1024 * MiB, .initial = 8 * MiB, .page = 2 * MiB}};
    gpumem::simulator::work(a, {gpumem::simulator::write(kv.data(), 8 * MiB)});
    gpumem::simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(kv.try_grow_to(a, 64 * MiB).error().reason, gpumem::outcome::device_lost);
    EXPECT_TRUE(device.lost());
    EXPECT_THROW(kv.resize(a, 64 * MiB), gpumem::cuda_error);
    EXPECT_EQ(kv.grow_to(a, 64 * MiB).try_now().error().reason, gpumem::outcome::device_lost);
    EXPECT_EQ(kv.bytes(), 8 * MiB);
  }
  EXPECT_EQ(pool.statistics().lent, 0u);
  gpumem::simulator::reset();
}

} // namespace
