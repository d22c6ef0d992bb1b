// The driver's memory pools: the default one, one of one's own, its attributes, and trimming.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>

import gpumem;

namespace {

using namespace gpumem::literals;

class driver_pool : public simulated {
protected:
  gpumem::device const device_{0};
};

TEST_F(driver_pool, default_pool_allocates_in_stream_order) {
  gpumem::stream stream{device_};
  gpumem::async_resource_view pool{device_};
  constexpr std::size_t bytes = 1024 * sizeof(float);
  auto* const block = pool.allocate(stream, bytes);
  gpumem::simulator::work(stream, {gpumem::simulator::write(block, bytes)});
  pool.deallocate(stream, block, bytes);
  stream.synchronize();
}

TEST_F(driver_pool, current_and_peak_bytes_are_reported) {
  gpumem::stream stream{device_};
  gpumem::async_resource pool{device_};
  auto* const block = pool.allocate(stream, 3_MiB);
  EXPECT_GE(pool.usage().used, 3_MiB);
  EXPECT_GE(pool.usage().reserved, pool.usage().used);
  pool.deallocate(stream, block, 3_MiB);
  stream.synchronize();
  EXPECT_EQ(pool.usage().used, 0u);
  EXPECT_GE(pool.usage().peak_used, 3_MiB);
}

TEST_F(driver_pool, new_pool_keeps_its_limit_and_threshold) {
  gpumem::stream stream{device_};
  gpumem::async_resource pool{device_, {.limit = 64_MiB, .release_threshold = 1_MiB}};
  auto const got = pool.try_allocate(stream, 65_MiB);
  ASSERT_FALSE(got);
  EXPECT_TRUE(got.error().reason == gpumem::outcome::too_large || got.error().reason == gpumem::outcome::exhausted);
  auto* const block = pool.allocate(stream, 32_MiB);
  pool.deallocate(stream, block, 32_MiB);
}

TEST_F(driver_pool, trim_returns_unused_memory) {
  gpumem::stream stream{device_};
  gpumem::async_resource pool{device_};
  pool.deallocate(stream, pool.allocate(stream, 32_MiB), 32_MiB);
  stream.synchronize();
  auto const before = pool.usage().reserved;
  EXPECT_GE(before, 32_MiB);
  EXPECT_EQ(pool.trim(0), before);
  EXPECT_EQ(pool.usage().reserved, 0u);
}

} // namespace
