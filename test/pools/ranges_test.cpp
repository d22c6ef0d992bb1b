// Blocks side by side: cut, freed, joined; the index tells the free ones by size.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstdint>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::chunk;
using gpumem::detail::fits;
using gpumem::detail::range_map;
using gpumem::detail::tag;
using gpumem::detail::tag_set;

namespace {

constexpr std::uintptr_t base = 0x10000;
void const* at(std::uintptr_t offset) { return reinterpret_cast<void const*>(base + offset); }

class ranges : public gpumem_test::simulated_test {
protected:
  chunk home{base, 4096, 0};
  range_map map;
};

TEST_F(ranges, a_cut_leaves_free_memory_on_both_sides) {
  auto& whole = map.add(home, {});
  auto& taken = map.take(whole, 1024, 512);
  EXPECT_EQ(taken.base, base + 1024);
  EXPECT_EQ(taken.bytes, 512u);
  EXPECT_TRUE(taken.live);
  EXPECT_EQ(home.live_blocks, 1u);
  EXPECT_EQ(map.free_bytes(), 3584u);
  ASSERT_NE(map.below(taken), nullptr);
  EXPECT_EQ(map.below(taken)->bytes, 1024u);
  EXPECT_EQ(map.above(taken)->bytes, 2560u);
  EXPECT_EQ(map.largest_run(), 2560u);
  EXPECT_EQ(map.covering(at(1535)), &taken);
  EXPECT_EQ(map.covering(at(4096)), nullptr);
  EXPECT_EQ(map.covering(reinterpret_cast<void const*>(base - 1)), nullptr);
}

TEST_F(ranges, freed_neighbours_join_to_the_whole) {
  auto& low = map.take(map.add(home, {}), 0, 256);
  auto& high = map.take(*map.above(low), 0, 256);
  map.release(high);
  EXPECT_TRUE(map.join(high, *map.above(high)));
  map.release(low);
  EXPECT_TRUE(map.join(low, high));
  EXPECT_EQ(low.bytes, 4096u);
  EXPECT_EQ(home.live_blocks, 0u);
  EXPECT_EQ(map.by_size().size(), 1u);
  EXPECT_EQ(map.largest_free(), 4096u);
}

TEST_F(ranges, chunks_that_touch_do_not_join) {
  chunk next{base + 4096, 4096, 0};
  auto& first = map.add(home, {});
  auto& second = map.add(next, {});
  EXPECT_EQ(map.above(first), nullptr);
  EXPECT_EQ(map.below(second), nullptr);
  EXPECT_EQ(map.largest_run(), 4096u);
  map.remove(home);
  EXPECT_EQ(map.free_bytes(), 4096u);
  EXPECT_EQ(map.covering(at(0)), nullptr);
}

TEST_F(ranges, the_index_gives_the_smallest_that_is_large_enough) {
  auto& first = map.take(map.add(home, {}), 0, 256);
  auto& second = map.take(*map.above(first), 0, 1024);
  auto& third = map.take(*map.above(second), 0, 256);
  map.release(second);
  EXPECT_EQ((*map.at_least(256))->bytes, 1024u);
  EXPECT_EQ((*map.at_least(1025))->base, third.end());
  EXPECT_EQ(map.at_least(4096), map.by_size().end());
}

TEST_F(ranges, a_join_beyond_four_streams_is_refused_and_counted) {
  auto const device = gpumem::device::current();
  gpumem::stream s[] = {gpumem::stream{device}, gpumem::stream{device}, gpumem::stream{device}, gpumem::stream{device},
                        gpumem::stream{device}};
  auto& low = map.take(map.add(home, {}), 0, 2048);
  auto& high = *map.above(low);
  for (int i = 0; i < 4; ++i) low.tags.add({&s[i].key().order(), 1, false});
  high.tags.add({&s[4].key().order(), 1, false});
  map.release(low);
  EXPECT_FALSE(map.join(low, high));
  EXPECT_EQ(map.refused_joins(), 1u);
  EXPECT_EQ(low.bytes, 2048u);
  EXPECT_EQ(map.largest_run(), 4096u);
  EXPECT_EQ(map.join_all([](block const&) { return true; }), 0u);
  low.tags.remove(s[0].key().order());
  EXPECT_EQ(map.join_all([](block const&) { return true; }), 1u);
  EXPECT_EQ(low.tags.size(), 4u);
}

TEST_F(ranges, alignment_finds_its_place_inside_a_block) {
  block range;
  range.base = base + 256;
  range.bytes = 4096;
  std::size_t offset = 0;
  EXPECT_TRUE(fits(range, 1024, 1024, offset));
  EXPECT_EQ(offset, 768u);
  EXPECT_FALSE(fits(range, 4096, 1024, offset));
  EXPECT_FALSE(fits(range, SIZE_MAX - 100, 256, offset));
  EXPECT_FALSE(fits(range, 256, std::size_t{1} << 40, offset));
}

} // namespace
