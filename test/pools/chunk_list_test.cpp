// How many bytes a pool gets from its upstream at a time, and which bytes count towards its limit.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstdint>

import gpumem;

using gpumem::detail::chunk;
using gpumem::detail::chunk_list;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

TEST(chunk_list_test, growth_steps_follow_the_reserved_bytes) {
  chunk_list list{0};
  EXPECT_EQ(list.growth(256, list.reserved()), 2 * MiB);
  EXPECT_EQ(list.growth(3 * MiB, list.reserved()), 4 * MiB);
  list.add(at(1 << 30), 64 * MiB);
  EXPECT_EQ(list.growth(256, list.reserved()), 12 * MiB);
  list.add(at(2u << 30), 8192 * MiB);
  EXPECT_EQ(list.growth(256, list.reserved()), 512 * MiB);
  EXPECT_EQ(list.growth(PTRDIFF_MAX, list.reserved()), (std::size_t{PTRDIFF_MAX} + 1));
}

TEST(chunk_list_test, growth_ends_at_the_limit) {
  chunk_list list{5 * MiB};
  EXPECT_EQ(list.growth(6 * MiB, list.reserved()), 0u);
  auto const& first = list.add(at(1 << 30), 4 * MiB);
  EXPECT_EQ(list.growth(256, list.reserved()), 1 * MiB);
  EXPECT_EQ(list.growth(1 * MiB + 256, list.reserved()), 0u);
  auto const gone = list.begin_release(first);
  EXPECT_EQ(list.reserved(), 0u);
  EXPECT_EQ(list.growth(1 * MiB + 256, list.reserved()), 0u) << "bytes being returned still count";
  list.end_release(gone.bytes);
  EXPECT_EQ(list.growth(1 * MiB + 256, list.reserved()), 2 * MiB);
  EXPECT_EQ(list.peak(), 4 * MiB);
}

TEST(chunk_list_test, largest_idle_chunk_leaves_the_bytes_to_keep) {
  chunk_list list{0};
  auto const always = [](chunk const&) { return true; };
  list.add(at(1 << 30), 4 * MiB);
  auto& large = list.add(at(2u << 30), 8 * MiB);
  EXPECT_EQ(list.largest_idle(0, always), &large);
  EXPECT_EQ(list.largest_idle(5 * MiB, always)->bytes, 4 * MiB);
  EXPECT_EQ(list.largest_idle(9 * MiB, always), nullptr);
  large.live_blocks = 1;
  EXPECT_EQ(list.largest_idle(0, always)->bytes, 4 * MiB);
  EXPECT_EQ(list.largest_idle(0, [](chunk const&) { return false; }), nullptr);
}

} // namespace
