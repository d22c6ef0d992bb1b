// Blocks by address, where only the address tells them apart.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

import gpumem;

namespace {

using gpumem::detail::block;
using gpumem::detail::block_table;
using gpumem::detail::granule;

// Addresses whose hashes are small numbers: of all tables the first slot, and all of one mark.
std::vector<std::uintptr_t> alike(std::size_t count) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;
  std::uint64_t inverse = factor; // Newton's steps double the bits that are right
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  std::vector<std::uintptr_t> found;
  for (std::uint64_t hash = 1; found.size() < count; ++hash) {
    if (auto const granules = inverse * hash; granules < UINT64_MAX / granule) found.push_back(granules * granule);
  }
  return found;
}

void const* at(std::uintptr_t address) { return reinterpret_cast<void const*>(address); }

TEST(block_table, tells_blocks_apart_whose_hashes_are_alike) {
  auto const addresses = alike(4);
  auto const blocks = std::make_unique<std::array<block, 3>>();
  block_table table;
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    (*blocks)[i].base = addresses[i];
    table.reserve(1);
    table.put((*blocks)[i]);
  }
  for (std::size_t i = 0; i < blocks->size(); ++i) EXPECT_EQ(table.find(at(addresses[i])), &(*blocks)[i]);
  EXPECT_EQ(table.find(at(addresses[3])), nullptr);
  table.drop((*blocks)[1]);
  EXPECT_EQ(table.find(at(addresses[1])), nullptr);
  EXPECT_EQ(table.find(at(addresses[2])), &(*blocks)[2]);
}

TEST(block_table, keeps_what_it_holds_when_it_grows) {
  constexpr std::size_t count = 2000;
  auto const blocks = std::make_unique<std::array<block, count>>();
  block_table table;
  for (std::size_t i = 0; i < count; ++i) {
    (*blocks)[i].base = (i + 1) * granule;
    table.reserve(1);
    table.put((*blocks)[i]);
    if (i % 3 == 2) table.drop((*blocks)[i - 1]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(table.find(at((i + 1) * granule)), i % 3 == 1 && i + 1 < count ? nullptr : &(*blocks)[i]) << i;
  }
}

} // namespace
