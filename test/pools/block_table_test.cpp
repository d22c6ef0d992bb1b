// The block table: finds blocks by address, also if their hashes collide.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <new>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

import gpumem;

namespace {

using gpumem::detail::block;
using gpumem::detail::block_table;
using gpumem::detail::granule;
using gpumem::detail::block_metadata;

// Returns addresses whose hashes are small numbers: all have the first slot of any table, and the same tag.
std::vector<std::uintptr_t> alike(std::size_t count) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;
  std::uint64_t inverse = factor; // each Newton step doubles the number of correct bits
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  std::vector<std::uintptr_t> found;
  for (std::uint64_t hash = 1; found.size() < count; ++hash) {
    if (auto const granules = inverse * hash; granules < UINT64_MAX / granule) found.push_back(granules * granule);
  }
  return found;
}

std::vector<block*> taken_from(block_metadata& metadata, std::size_t count) {
  std::vector<block*> taken;
  metadata.reserve(count);
  for (std::size_t i = 0; i < count; ++i) taken.push_back(&metadata.allocate());
  return taken;
}

void const* at(std::uintptr_t address) { return reinterpret_cast<void const*>(address); }

TEST(block_table, blocks_with_equal_hashes_are_found) {
  auto const addresses = alike(4);
  block_metadata metadata;
  auto const blocks = taken_from(metadata, 3);
  block_table table{metadata};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->base = addresses[i];
    table.reserve(1);
    table.insert(*blocks[i]);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(table.find(at(addresses[i])), blocks[i]);
  EXPECT_EQ(table.find(at(addresses[3])), nullptr);
  table.erase(*blocks[1]);
  EXPECT_EQ(table.find(at(addresses[1])), nullptr);
  EXPECT_EQ(table.find(at(addresses[2])), blocks[2]);
}

// A large table, with more blocks than the metadata allocates memory for at once.
TEST(block_table, growth_keeps_all_blocks) {
  constexpr std::size_t count = 100'000;
  block_metadata metadata;
  auto const blocks = taken_from(metadata, count);
  block_table table{metadata};
  for (std::size_t i = 0; i < count; ++i) {
    blocks[i]->base = (i + 1) * granule;
    table.reserve(1);
    table.insert(*blocks[i]);
    if (i % 3 == 2) table.erase(*blocks[i - 1]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(table.find(at((i + 1) * granule)), i % 3 == 1 && i + 1 < count ? nullptr : blocks[i]) << i;
  }
}

TEST(block_metadata_test, released_records_are_reused) {
  block_metadata metadata;
  auto const blocks = taken_from(metadata, 20'000);
  for (auto* const each : blocks) ASSERT_EQ(&metadata.at(metadata.number_of(*each)), each);
  for (auto* const each : blocks) metadata.deallocate(*each);
  auto again = taken_from(metadata, blocks.size());
  std::ranges::sort(again);
  EXPECT_TRUE(std::ranges::adjacent_find(again) == again.end());
  auto sorted = blocks;
  std::ranges::sort(sorted);
  EXPECT_EQ(again, sorted);
}

// If the process may use few addresses, fewer records fit and `reserve` throws.
TEST(block_metadata_test, allocator_can_use_its_whole_address_range) {
  std::size_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages;
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &usual), 0);
  rlimit const few{pages * static_cast<std::size_t>(getpagesize()) + (std::size_t{64} << 20), usual.rlim_max};
  block_metadata metadata;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &few), 0);
  EXPECT_NO_THROW(metadata.reserve(1000));
  EXPECT_THROW(metadata.reserve(1 << 20), std::bad_alloc);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &usual), 0);
  for (int i = 0; i < 1000; ++i) metadata.allocate();
}

} // namespace
