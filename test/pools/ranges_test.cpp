// Blocks side by side: cut, freed, joined, on shelves by size and by whom they wait for.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::chunk;
using gpumem::detail::fits;
using gpumem::detail::range_map;
using gpumem::detail::tag;
using gpumem::detail::tag_set;

namespace {

constexpr std::uintptr_t base = 0x10000;
void const* at(std::uintptr_t offset) { return reinterpret_cast<void const*>(base + offset); }
constexpr auto any = range_map::joining::any;
constexpr auto alike = range_map::joining::alike;
constexpr auto unused = range_map::joining::unused;

class ranges : public gpumem_test::simulated_test {
protected:
  block& whole() { return map.add(home, {}); }
  // The free block that a search of the common shelf gives.
  block* find(std::size_t bytes, std::size_t alignment = 256) {
    std::size_t offset = 0;
    return map.by_order().common().bins().find(bytes, alignment, offset);
  }
  static auto& of(gpumem::stream const& s) { return s.key().order(); }
  // The stream is idle. What it has not come to may not be complete: the next stream has its timeline.
  static void complete_up_to(gpumem::stream const& s, gpumem::epoch last) {
    while (of(s).now() <= last) of(s).close_epoch();
    of(s).publish_completed(last);
  }

  gpumem::device device = gpumem::device::current();
  chunk home{.base = base, .bytes = 4096};
  range_map map;
};

TEST_F(ranges, a_cut_leaves_free_memory_on_both_sides) {
  auto& taken = map.take(whole(), 1024, 512);
  EXPECT_EQ(taken.base, base + 1024);
  EXPECT_EQ(taken.bytes, 512u);
  EXPECT_TRUE(taken.is_live());
  EXPECT_EQ(home.live_blocks, 1u);
  EXPECT_EQ(map.free_bytes(), 3584u);
  EXPECT_EQ(taken.lower->bytes, 1024u);
  EXPECT_EQ(taken.upper->bytes, 2560u);
  EXPECT_EQ(map.largest_free(), 2560u);
  EXPECT_EQ(range_map::largest_run(home), 2560u);
  EXPECT_EQ(range_map::covering(home, at(1535)), &taken);
  EXPECT_EQ(range_map::covering(home, at(4096)), nullptr);
  EXPECT_EQ(map.granted_at(at(1024)), &taken);
  EXPECT_EQ(map.granted_at(at(1280)), nullptr);
}

TEST_F(ranges, freed_neighbours_join_to_the_whole) {
  auto& low = map.take(whole(), 0, 256);
  auto& high = map.take(*low.upper, 0, 256);
  map.release(high, any);
  EXPECT_EQ(map.granted_at(at(256)), nullptr);
  auto& joined = map.release(low, any);
  EXPECT_EQ(joined.bytes, 4096u);
  EXPECT_EQ(home.first, &joined);
  EXPECT_EQ(home.last, &joined);
  EXPECT_EQ(home.live_blocks, 0u);
  EXPECT_EQ(map.largest_free(), 4096u);
  EXPECT_EQ(map.joins(), 2u);
}

TEST_F(ranges, chunks_that_touch_do_not_join) {
  chunk next{.base = base + 4096, .bytes = 4096};
  auto& first = whole();
  auto& second = map.add(next, {});
  EXPECT_EQ(first.upper, nullptr);
  EXPECT_EQ(second.lower, nullptr);
  EXPECT_EQ(map.largest_free(), 4096u);
  map.remove(home);
  EXPECT_EQ(map.free_bytes(), 4096u);
  EXPECT_EQ(find(256), &second);
}

TEST_F(ranges, the_smallest_that_is_large_enough_is_found) {
  auto& first = map.take(whole(), 0, 256);
  auto& second = map.take(*first.upper, 0, 1024);
  auto& third = map.take(*second.upper, 0, 256);
  map.release(second, alike);
  EXPECT_EQ(find(256)->bytes, 1024u);
  EXPECT_EQ(find(1280)->base, third.end());
  EXPECT_EQ(find(4096), nullptr);
}

// The sizes of a large bin differ: what a search looks at first may be too small, or lie badly.
TEST_F(ranges, a_bin_is_searched_to_its_end_before_the_search_fails) {
  chunk large{.base = std::uintptr_t{1} << 30, .bytes = std::size_t{64} << 20};
  std::vector<block*> blocks, walls;
  auto* rest = &map.add(large, {});
  constexpr std::size_t small = std::size_t{1024} * 256, step = 256;
  for (std::size_t i = 0; i < 20; ++i) {
    blocks.push_back(&map.take(*rest, 0, small + (i == 0 ? step : 0)));
    rest = blocks.back()->upper;
    walls.push_back(&map.take(*rest, 0, 256));
    rest = walls.back()->upper;
  }
  map.take(*rest, 0, rest->bytes);
  for (auto* const each : blocks) map.release(*each, alike);
  EXPECT_EQ(find(small + step), blocks[0]);
  EXPECT_EQ(find(small + 2 * step), nullptr);
  EXPECT_EQ(find(256, large.bytes), blocks[0]) << "the only one in which so aligned an address lies";
}

// Nothing lies behind the last bin.
TEST_F(ranges, a_search_ends_with_the_largest_blocks) {
  gpumem::detail::size_bins bins;
  block small, large;
  small.bytes = 256;
  large.bytes = std::size_t{1} << 60;
  bins.put(small);
  bins.put(large);
  std::vector<block*> visited;
  bins.visit_from(512, [&](block& each) { visited.push_back(&each); });
  EXPECT_EQ(visited, std::vector{&large});
  EXPECT_EQ(bins.largest(), large.bytes);
}

TEST_F(ranges, memory_is_on_the_shelf_of_its_stream) {
  gpumem::stream const a{device}, b{device};
  auto& all = map.by_order();
  auto& low = map.take(whole(), 0, 1024);
  auto& wall = map.take(*low.upper, 0, 1024);
  auto& high = map.take(*wall.upper, 0, 1024);
  low.tags.add({&of(a), 5});
  high.tags.add({&of(a), 3});
  map.release(low, alike);
  map.release(high, alike);
  auto* const own = all.find(of(a));
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(all.find(of(b)), nullptr);
  EXPECT_EQ(own->oldest(), &high) << "by epoch, not by the time of the free";
  EXPECT_EQ(own->newest(), &low);
  EXPECT_TRUE(own->open(false));
  complete_up_to(a, 3);
  map.complete(high);
  EXPECT_EQ(own->oldest(), &low);
  EXPECT_EQ(find(2048), home.last) << "with the rest, which nobody uses";
  complete_up_to(a, 5);
  EXPECT_FALSE(own->open(false));
  map.complete(low);
  EXPECT_TRUE(own->empty());
  map.release(wall, alike);
  EXPECT_EQ(find(4096), home.first);
}

TEST_F(ranges, neighbours_of_different_streams_join_when_asked) {
  gpumem::stream const a{device}, b{device};
  auto& low = map.take(whole(), 0, 2048);
  auto& high = map.take(*low.upper, 0, 2048);
  low.tags.add({&of(a), 1});
  high.tags.add({&of(b), 1});
  map.release(low, alike);
  map.release(high, alike);
  EXPECT_EQ(range_map::largest_run(home), 4096u);
  EXPECT_EQ(map.largest_free(), 2048u);
  map.join_all([&](block const& each) { return &each == &low; });
  EXPECT_EQ(map.joins(), 0u);
  map.join_all([](block const&) { return true; });
  EXPECT_EQ(map.joins(), 1u);
  EXPECT_EQ(map.by_order().mixed().oldest()->bytes, 4096u);
  EXPECT_EQ(map.by_order().mixed().oldest()->tags.size(), 2u);
}

TEST_F(ranges, freed_memory_joins_what_nobody_uses_unless_that_is_over_16_times_as_large) {
  gpumem::stream const a{device};
  for (std::size_t const times : {16, 17}) {
    for (bool const above : {false, true}) {
      range_map one;
      chunk whole_of_it{.base = base, .bytes = (times + 1) * 256};
      auto& freed = one.take(one.add(whole_of_it, {}), above ? times * 256 : 0, 256);
      freed.tags.add({&of(a), 1});
      auto& range = one.release(freed, unused);
      EXPECT_EQ(range.bytes, times == 16 ? whole_of_it.bytes : 256);
      EXPECT_TRUE(range.tags.find(of(a)));
    }
  }
}

TEST_F(ranges, freed_memory_of_two_streams_does_not_join_with_what_nobody_uses_between) {
  gpumem::stream const a{device}, b{device};
  auto& low = map.take(whole(), 0, 1024);
  auto& middle = map.take(*low.upper, 0, 2048);
  auto& high = *middle.upper;
  map.take(high, 0, 1024);
  low.tags.add({&of(a), 1});
  home.last->tags.add({&of(b), 1});
  map.release(middle, unused);
  auto& joined = map.release(low, unused);
  EXPECT_EQ(joined.bytes, 3072u);
  auto& apart = map.release(*home.last, unused);
  EXPECT_EQ(apart.bytes, 1024u);
  EXPECT_FALSE(apart.tags.find(of(a)));
}

TEST_F(ranges, a_join_beyond_four_streams_is_refused_and_counted) {
  std::vector<gpumem::stream> s;
  for (int i = 0; i < 5; ++i) s.emplace_back(device);
  auto& low = map.take(whole(), 0, 2048);
  auto& high = map.take(*low.upper, 0, 2048);
  for (std::size_t i = 0; i < 4; ++i) low.tags.add({&of(s[i]), 100});
  high.tags.add({&of(s[4]), 100});
  map.release(low, any);
  map.release(high, any);
  EXPECT_EQ(map.refused_joins(), 1u);
  EXPECT_EQ(low.bytes, 2048u);
  map.join_all([](block const&) { return true; });
  EXPECT_EQ(map.joins(), 0u);
  complete_up_to(s[0], 100);
  map.prune(low);
  map.join_all([](block const&) { return true; });
  EXPECT_EQ(map.joins(), 1u);
  EXPECT_EQ(home.first->tags.size(), 4u);
}

TEST_F(ranges, a_chunk_grows_at_its_end) {
  gpumem::stream const a{device};
  auto& first = map.take(whole(), 0, 1024);
  auto& more = map.extend(home, 4096, {});
  EXPECT_EQ(home.bytes, 8192u);
  EXPECT_EQ(more.base, base + 1024) << "joined with the free memory at the end";
  EXPECT_EQ(more.bytes, 7168u);
  auto& other = map.extend(home, 256, tag_set{tag{&of(a), 1}});
  EXPECT_EQ(other.bytes, 256u) << "of another order";
  EXPECT_EQ(home.last, &other);
  EXPECT_EQ(first.upper, &more);
  EXPECT_EQ(map.free_bytes(), 7424u);
}

TEST_F(ranges, memory_leaves_a_hole_that_can_be_filled) {
  auto& hole = map.carve(whole(), base + 1024, 1024);
  EXPECT_EQ(map.free_bytes(), 3072u);
  EXPECT_EQ(home.live_blocks, 0u);
  EXPECT_EQ(range_map::covering(home, at(1024)), &hole);
  EXPECT_EQ(map.granted_at(at(1024)), nullptr);
  auto& larger = map.carve(*hole.upper, hole.upper->base, 1024);
  EXPECT_EQ(&larger, &hole) << "holes side by side are one";
  EXPECT_EQ(larger.bytes, 2048u);
  auto& lowest = map.carve(*larger.lower, base, 1024);
  EXPECT_EQ(lowest.bytes, 3072u);
  EXPECT_EQ(map.free_bytes(), 1024u);
  auto& middle = map.fill(lowest, 1024, 1024, {});
  EXPECT_EQ(map.free_bytes(), 2048u);
  EXPECT_EQ(range_map::covering(home, at(1024)), &middle);
  EXPECT_EQ(middle.bytes, 1024u);
  ASSERT_EQ(middle.lower, home.first);
  EXPECT_EQ(middle.lower->now(), block_state::hole);
  EXPECT_EQ(middle.upper, &lowest) << "what is left of the hole above";
  EXPECT_EQ(lowest.bytes, 1024u);
  map.fill(*middle.lower, 0, 1024, {});
  map.fill(lowest, 0, lowest.bytes, {});
  EXPECT_EQ(map.free_bytes(), 4096u);
  EXPECT_EQ(find(4096), home.first);
}

TEST_F(ranges, a_hole_reaches_over_memory_of_several_orders) {
  gpumem::stream const a{device}, b{device}, c{device};
  auto* last = &whole();
  for (auto const* const each : {&a, &b, &c}) {
    last = &map.take(*home.last, 0, 1024);
    last->tags.add({&of(*each), 1});
    map.release(*last, range_map::joining::alike);
  }
  auto& hole = map.carve(*last, base + 512, 2048);
  EXPECT_EQ(hole.base, base + 512);
  EXPECT_EQ(hole.bytes, 2048u);
  EXPECT_EQ(map.free_bytes(), 2048u);
  ASSERT_EQ(hole.lower, home.first);
  EXPECT_TRUE(hole.lower->tags.find(of(a))) << "what is left stays with its stream";
  EXPECT_EQ(hole.lower->bytes, 512u);
  EXPECT_TRUE(hole.upper->tags.find(of(c)));
  EXPECT_EQ(hole.upper->bytes, 512u);
  map.fill(hole, 0, hole.bytes, {});
  map.join_all([](block const&) { return true; });
  EXPECT_EQ(home.first, home.last);
  EXPECT_EQ(home.first->bytes, 4096u);
  EXPECT_EQ(map.free_bytes(), 4096u);
}

// Against a plain map of bytes.
TEST_F(ranges, cuts_and_joins_in_any_order_keep_every_byte_in_one_place) {
  chunk large{.base = std::uintptr_t{1} << 32, .bytes = std::size_t{1} << 20};
  map.add(large, {});
  std::mt19937 random{7};
  std::vector<block*> live;
  std::map<std::uintptr_t, std::size_t> taken;
  for (int i = 0; i < 20'000; ++i) {
    auto const bytes = 256 * (1 + random() % 200);
    auto const alignment = random() % 4 == 0 ? std::size_t{4096} : std::size_t{256};
    std::size_t offset = 0;
    if (auto* const range = map.by_order().common().bins().find(bytes, alignment, offset); range && random() % 2) {
      auto& one = map.take(*range, offset, bytes);
      ASSERT_EQ(one.base % alignment, 0u);
      auto const next = taken.emplace(one.base, bytes).first;
      if (next != taken.begin()) ASSERT_LE(std::prev(next)->first + std::prev(next)->second, one.base);
      if (std::next(next) != taken.end()) ASSERT_LE(one.end(), std::next(next)->first);
      ASSERT_EQ(map.granted_at(one.pointer()), &one);
      live.push_back(&one);
    } else if (!live.empty()) {
      auto& one = live[random() % live.size()];
      taken.erase(one->base);
      map.release(*one, any);
      one = live.back();
      live.pop_back();
    }
  }
  for (auto* const one : live) map.release(*one, any);
  EXPECT_EQ(map.largest_free(), large.bytes);
  EXPECT_EQ(map.free_bytes(), large.bytes);
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
