// Pools: their sizes and limits, what they cost upstream, when they shrink, how they coalesce.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <vector>

import gpumem;

namespace {

using namespace gpumem::literals;

class pool_allocators : public simulated {
protected:
  gpumem::cuda_resource const upstream_{gpumem::device{0}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(pool_allocators, sizes_can_be_written_with_units) {
  gpumem::pool_resource const pool{
      upstream_, {.initial_size = gpumem::parse_bytes("1.5GiB"), .limit = gpumem::parse_bytes("4GiB")}};
  EXPECT_EQ(pool.statistics().reserved, 1536_MiB);
  EXPECT_EQ(pool.statistics().limit, 4_GiB);
}

TEST_F(pool_allocators, limit_is_never_exceeded) {
  gpumem::pool_resource pool{upstream_, {.initial_size = 2_MiB, .limit = 8_MiB}};
  std::vector<void*> blocks;
  for (;;) {
    auto const got = pool.try_allocate(stream_, 1_MiB);
    if (!got) break;
    blocks.push_back(*got);
  }
  EXPECT_EQ(blocks.size(), 8u);
  EXPECT_EQ(pool.statistics().peak_reserved, 8_MiB);
  for (auto* const block : blocks) pool.deallocate(stream_, block, 1_MiB);
}

// Neighbours are joined: where eight small blocks were, one large one fits, without growth.
TEST_F(pool_allocators, freed_neighbours_coalesce) {
  gpumem::pool_resource pool{upstream_, {.initial_size = 8_MiB, .limit = 8_MiB}};
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(stream_, 1_MiB));
  for (auto* const block : blocks) pool.deallocate(stream_, block, 1_MiB);
  auto* const whole = pool.allocate(stream_, 8_MiB);
  EXPECT_EQ(pool.statistics().upstream_allocations, 1u);
  pool.deallocate(stream_, whole, 8_MiB);
}

// The guide's pools never shrink; these do, when told to, and by themselves beyond a threshold.
TEST_F(pool_allocators, trim_returns_memory) {
  gpumem::pool_resource pool{upstream_, {.initial_size = 64_MiB}};
  EXPECT_EQ(pool.trim(0), 64_MiB);
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

TEST_F(pool_allocators, warm_pool_asks_only_whether_the_stream_captures) {
  gpumem::pool_resource pool{upstream_, {.initial_size = 16_MiB}};
  auto const cycle = [&] {
    for (std::size_t const bytes : {1_KiB, 1_MiB, 5_MiB})
      pool.deallocate(stream_, pool.allocate(stream_, bytes), bytes);
  };
  cycle();
  auto const other_calls = [] {
    return gpumem::driver_api::driver_calls() - gpumem::driver_api::driver_calls("cuStreamIsCapturing");
  };
  auto const before = other_calls();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(other_calls(), before);
}

} // namespace
