// Pools of blocks of one size.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;

class fixed_size : public simulated {
protected:
  gpumem::device const device_{0};
  gpumem::stream stream_{device_};
  gpumem::statistics_adaptor<gpumem::cuda_resource> upstream_{gpumem::cuda_resource{device_}};
};

TEST_F(fixed_size, request_takes_a_whole_block) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 64_KiB, .blocks_per_chunk = 8}};
  EXPECT_EQ(pool.block_size(), 64_KiB);
  auto* const block = pool.allocate(stream_, 100);
  EXPECT_EQ(pool.statistics().live, 100u);
  EXPECT_EQ(pool.statistics().allocated, 64_KiB);
  EXPECT_EQ(pool.find(block)->allocated, 64_KiB);
  pool.deallocate(stream_, block, 100);
  auto* const again = pool.allocate(stream_, 64_KiB);
  EXPECT_EQ(again, block) << "a free block serves each size";
  pool.deallocate(stream_, again, 64_KiB);
}

TEST_F(fixed_size, upstream_gives_the_blocks_of_a_chunk_at_once) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 64_KiB, .blocks_per_chunk = 8}};
  EXPECT_EQ(upstream_.counters().allocations.total, 0) << "nothing before the first request";
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(stream_, 1 + i));
  EXPECT_EQ(upstream_.counters().allocations.total, 1);
  EXPECT_EQ(upstream_.counters().bytes.total, 512 << 10);
  blocks.push_back(pool.allocate(stream_, 1));
  EXPECT_EQ(upstream_.counters().allocations.total, 2);
  pool.deallocate(stream_, blocks[8], 1);
  for (int i = 0; i < 8; ++i) pool.deallocate(stream_, blocks[i], 1 + i);
}

TEST_F(fixed_size, blocks_of_all_sizes_fill_a_chunk) {
  for (std::size_t const size : {1ul, 256ul, 5000ul, 70'000ul, 1'048'576ul, 3'000'000ul}) {
    SCOPED_TRACE(size);
    gpumem::fixed_size_resource pool{upstream_, {.block_size = size, .blocks_per_chunk = 5}};
    EXPECT_GE(pool.block_size(), size);
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(pool.allocate(stream_, size));
    EXPECT_EQ(pool.statistics().upstream_allocations, 1u);
    EXPECT_EQ(pool.statistics().reserved, 5 * pool.block_size());
    EXPECT_EQ(pool.statistics().free, 0u);
    for (auto* const each : blocks) pool.deallocate(stream_, each, size);
  }
}

TEST_F(fixed_size, larger_request_is_too_large) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 64_KiB}};
  EXPECT_EQ(pool.try_allocate(stream_, 64_KiB + 1).error().reason, gpumem::outcome::too_large);
  try {
    (void)pool.allocate(stream_, 1_MiB);
    ADD_FAILURE() << "nothing was thrown";
  } catch (gpumem::out_of_memory const& e) {
    std::string const text = e.what();
    EXPECT_NE(text.find("in 'fixed_size': requested 1.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("blocks of at most 64.0 KiB"), std::string::npos) << text;
  }
  EXPECT_THROW((void)pool.allocate_sync(1_MiB), gpumem::out_of_memory);
  EXPECT_EQ(pool.acquire(stream_, 1_MiB).wait_until(gpumem::detail::sync::now()).error().reason,
            gpumem::outcome::too_large);
  auto const several = pool.acquire_all({{stream_, 1_KiB}, {stream_, 1_MiB}}).try_now();
  EXPECT_EQ(several.error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(pool.statistics().largest_block, 64_KiB);
}

TEST_F(fixed_size, trim_gives_back_whole_chunks) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 1_KiB, .blocks_per_chunk = 16}};
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(pool.allocate(stream_, 1_KiB));
  EXPECT_EQ(pool.statistics().reserved, 32_KiB);
  for (int i = 1; i < 32; ++i) pool.deallocate(stream_, blocks[i], 1_KiB);
  ASSERT_TRUE(pool.synchronize(std::chrono::seconds{10}));
  EXPECT_EQ(pool.trim(), 16_KiB);
  EXPECT_EQ(pool.statistics().reserved, 16_KiB) << "one block is live";
  pool.deallocate(stream_, blocks[0], 1_KiB);
}

TEST_F(fixed_size, limit_of_a_part_of_a_chunk_holds) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 1_MiB, .pool = {.limit = 3_MiB}}};
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate(stream_, 1));
  EXPECT_EQ(pool.try_allocate(stream_, 1).error().reason, gpumem::outcome::exhausted);
  for (auto* const each : blocks) pool.deallocate(stream_, each, 1);
}

TEST_F(fixed_size, request_waits_for_a_block) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 1_MiB, .pool = {.limit = 1_MiB}}};
  auto first = pool.acquire(stream_, 1).wait();
  bool granted = false;
  gpumem::detail::sync::thread waiting{[&] {
    auto const second = pool.acquire(stream_, 500_KiB).wait();
    granted = second.bytes() == 500_KiB;
  }};
  first.reset();
  waiting.join();
  EXPECT_TRUE(granted);
}

TEST_F(fixed_size, alignment_is_honoured) {
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 64_KiB, .blocks_per_chunk = 8}};
  auto* const block = pool.allocate(stream_, 100, 1_MiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 1_MiB, 0u);
  pool.deallocate(stream_, block, 100, 1_MiB);
}

TEST_F(fixed_size, misuse_is_reported) {
  test::recorded_misuse const recorded;
  gpumem::fixed_size_resource pool{upstream_, {.block_size = 64_KiB, .pool = {.hardened = {.enabled = true}}}};
  auto* const block = pool.allocate(stream_, 100);
  pool.deallocate(stream_, block, 200);
  pool.deallocate(stream_, block, 100);
  pool.deallocate(stream_, block, 100);
  int other = 0;
  pool.deallocate(stream_, &other, 100);
  ASSERT_EQ(test::seen.size(), 3u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::double_free);
  EXPECT_EQ(test::seen[2].what, gpumem::misuse::kind::foreign_pointer);
}

TEST_F(fixed_size, hardened_pool_serves_blocks_of_the_full_size) {
  gpumem::fixed_size_resource pool{
      upstream_, {.block_size = 64_KiB, .blocks_per_chunk = 4, .pool = {.hardened = {.enabled = true}}}};
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(stream_, 64_KiB));
  EXPECT_EQ(pool.statistics().upstream_allocations, 1u);
  EXPECT_EQ(pool.try_allocate(stream_, 64_KiB + 1).error().reason, gpumem::outcome::too_large);
  for (auto* const each : blocks) pool.deallocate(stream_, each, 64_KiB);
}

TEST_F(fixed_size, bad_options_are_refused) {
  auto const make = [&](gpumem::fixed_size_options options) {
    gpumem::fixed_size_resource<gpumem::cuda_resource>{gpumem::cuda_resource{device_}, std::move(options)};
  };
  EXPECT_THROW(make({.block_size = 0}), std::invalid_argument);
  EXPECT_THROW(make({.block_size = SIZE_MAX}), std::invalid_argument);
  EXPECT_THROW(make({.blocks_per_chunk = 0}), std::invalid_argument);
  EXPECT_THROW(make({.blocks_per_chunk = SIZE_MAX / 2}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.chunk_size = 1_MiB}}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.smallest_block = 1_MiB}}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.largest_block = 1_MiB}}), std::invalid_argument);
  EXPECT_THROW(make({.block_size = 2_MiB, .pool = {.limit = 1_MiB}}), std::invalid_argument);
}

TEST_F(fixed_size, erased_pool_refuses_and_serves_as_before) {
  gpumem::any_pool pool{gpumem::fixed_size_resource{upstream_, {.block_size = 64_KiB}}};
  auto const block = gpumem::acquire(pool, stream_, 1_KiB).try_now();
  ASSERT_TRUE(block);
  EXPECT_EQ(gpumem::acquire(pool, stream_, 1_MiB).try_now().error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(gpumem::statistics_of(pool)->live, 1_KiB);
}

// The options of pool_resource that make a pool of one size.
TEST_F(fixed_size, pool_has_bounds_for_its_blocks) {
  gpumem::pool_resource pool{upstream_, {.chunk_size = 1_MiB, .smallest_block = 4_KiB, .largest_block = 256_KiB}};
  auto* const small = pool.allocate(stream_, 1);
  EXPECT_EQ(pool.find(small)->allocated, 4_KiB);
  EXPECT_EQ(pool.statistics().reserved, 1_MiB);
  auto* const large = pool.allocate(stream_, 256_KiB);
  EXPECT_EQ(pool.try_allocate(stream_, 300_KiB).error().reason, gpumem::outcome::too_large);
  pool.deallocate(stream_, small, 1);
  pool.deallocate(stream_, large, 256_KiB);
  EXPECT_THROW((gpumem::pool_resource{upstream_, {.smallest_block = 2_MiB, .largest_block = 1_MiB}}),
               std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{upstream_, {.limit = 1_MiB, .chunk_size = 2_MiB}}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{upstream_, {.chunk_size = SIZE_MAX}}), std::invalid_argument);
}

TEST_F(fixed_size, pool_of_a_device_with_a_chunk_size_uses_chunks) {
  gpumem::pool_resource pool{device_, {.chunk_size = 1_MiB}};
  auto* const block = pool.allocate(stream_, 1);
  EXPECT_EQ(pool.statistics().reserved, 1_MiB);
  auto* const large = pool.allocate(stream_, 5_MiB);
  EXPECT_EQ(pool.statistics().reserved, 6_MiB) << "a larger request gets a chunk of its own size";
  pool.deallocate(stream_, block, 1);
  pool.deallocate(stream_, large, 5_MiB);
  EXPECT_THROW((gpumem::pool_resource{device_, {.chunk_size = 1_MiB}, {.exportable = true}}), std::invalid_argument);
}

} // namespace
