// Blocks of a chunk: split, freed, coalesced, and kept on free lists by size and by the streams that use them.
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
using gpumem::detail::range_allocator;
using gpumem::detail::stream_use;
using gpumem::detail::stream_uses;

namespace {

constexpr std::uintptr_t base = 0x10000;
void const* at(std::uintptr_t offset) { return reinterpret_cast<void const*>(base + offset); }
constexpr auto any = range_allocator::coalescing::any;
constexpr auto alike = range_allocator::coalescing::same_streams;
constexpr auto unused = range_allocator::coalescing::unused;

class range_allocator_test : public gpumem_test::simulated_test {
protected:
  block& whole() { return map.add(parent, {}); }
  // Returns the free block that a search of the common free list finds.
  block* find(std::size_t bytes, std::size_t alignment = 256) {
    std::size_t offset = 0;
    return map.lists().ready().bins().find(bytes, alignment, offset);
  }
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  // Publishes completion for an idle stream. Later epochs must not be complete, since the next stream reuses its
  // timeline.
  static void complete_up_to(gpumem::stream const& s, gpumem::extend::epoch last) {
    while (of(s).current_epoch() <= last) of(s).epochs().advance();
    of(s).epochs().publish_completed(last);
  }

  gpumem::device device = gpumem::device::current();
  chunk parent{.base = base, .bytes = 4096};
  range_allocator map;
};

TEST_F(range_allocator_test, split_leaves_free_memory_on_both_sides) {
  auto& taken = map.split_off(whole(), 1024, 512);
  EXPECT_EQ(taken.base, base + 1024);
  EXPECT_EQ(taken.bytes, 512u);
  EXPECT_TRUE(taken.is_live());
  EXPECT_EQ(parent.live_blocks, 1u);
  EXPECT_EQ(map.free_bytes(), 3584u);
  EXPECT_EQ(taken.lower->bytes, 1024u);
  EXPECT_EQ(taken.upper->bytes, 2560u);
  EXPECT_EQ(map.lists().largest(), 2560u);
  EXPECT_EQ(parent.largest_run(), 2560u);
  EXPECT_EQ(parent.find_containing(at(1535)), &taken);
  EXPECT_EQ(parent.find_containing(at(4096)), nullptr);
  EXPECT_EQ(map.find_live(at(1024)), &taken);
  EXPECT_EQ(map.find_live(at(1280)), nullptr);
}

TEST_F(range_allocator_test, freed_neighbours_coalesce) {
  auto& low = map.split_off(whole(), 0, 256);
  auto& high = map.split_off(*low.upper, 0, 256);
  map.free(high, any);
  EXPECT_EQ(map.find_live(at(256)), nullptr);
  auto& joined = map.free(low, any);
  EXPECT_EQ(joined.bytes, 4096u);
  EXPECT_EQ(parent.first, &joined);
  EXPECT_EQ(parent.last, &joined);
  EXPECT_EQ(parent.live_blocks, 0u);
  EXPECT_EQ(map.lists().largest(), 4096u);
  EXPECT_EQ(map.free_ranges().coalesces(), 2u);
}

TEST_F(range_allocator_test, blocks_of_adjacent_chunks_do_not_coalesce) {
  chunk next{.base = base + 4096, .bytes = 4096};
  auto& first = whole();
  auto& second = map.add(next, {});
  EXPECT_EQ(first.upper, nullptr);
  EXPECT_EQ(second.lower, nullptr);
  EXPECT_EQ(map.lists().largest(), 4096u);
  map.remove(parent);
  EXPECT_EQ(map.free_bytes(), 4096u);
  EXPECT_EQ(find(256), &second);
}

TEST_F(range_allocator_test, smallest_sufficient_range_is_found) {
  auto& first = map.split_off(whole(), 0, 256);
  auto& second = map.split_off(*first.upper, 0, 1024);
  auto& third = map.split_off(*second.upper, 0, 256);
  map.free(second, alike);
  EXPECT_EQ(find(256)->bytes, 1024u);
  EXPECT_EQ(find(1280)->base, third.end());
  EXPECT_EQ(find(4096), nullptr);
}

// Blocks in a large bin differ in size: the first ones that a search visits may be too small or unaligned.
TEST_F(range_allocator_test, bin_is_searched_to_its_end) {
  chunk large{.base = std::uintptr_t{1} << 30, .bytes = std::size_t{64} << 20};
  std::vector<block*> blocks, walls;
  auto* rest = &map.add(large, {});
  constexpr std::size_t small = std::size_t{1024} * 256, step = 256;
  for (std::size_t i = 0; i < 20; ++i) {
    blocks.push_back(&map.split_off(*rest, 0, small + (i == 0 ? step : 0)));
    rest = blocks.back()->upper;
    walls.push_back(&map.split_off(*rest, 0, 256));
    rest = walls.back()->upper;
  }
  map.split_off(*rest, 0, rest->bytes);
  for (auto* const each : blocks) map.free(*each, alike);
  EXPECT_EQ(find(small + step), blocks[0]);
  EXPECT_EQ(find(small + 2 * step), nullptr);
  EXPECT_EQ(find(256, large.bytes), blocks[0]) << "the only range with an address of this alignment";
}

// There is no bin after the last one.
TEST_F(range_allocator_test, search_ends_with_the_largest_bin) {
  gpumem::detail::size_bins bins;
  block small, large;
  small.bytes = 256;
  large.bytes = std::size_t{1} << 60;
  bins.insert(small);
  bins.insert(large);
  std::vector<block*> visited;
  bins.visit_from(512, [&](block& each) { visited.push_back(&each); });
  EXPECT_EQ(visited, std::vector{&large});
  EXPECT_EQ(bins.largest(), large.bytes);
}

TEST_F(range_allocator_test, memory_is_on_the_free_list_of_its_stream) {
  gpumem::stream const a{device}, b{device};
  auto& all = map.lists();
  auto& low = map.split_off(whole(), 0, 1024);
  auto& wall = map.split_off(*low.upper, 0, 1024);
  auto& high = map.split_off(*wall.upper, 0, 1024);
  low.uses.add({&of(a), 5});
  high.uses.add({&of(a), 3});
  map.free(low, alike);
  map.free(high, alike);
  auto* const own = all.find(of(a));
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(all.find(of(b)), nullptr);
  EXPECT_EQ(own->oldest(), &high) << "ordered by epoch, not by the time of the free";
  EXPECT_EQ(own->newest(), &low);
  EXPECT_TRUE(own->in_use(false));
  complete_up_to(a, 3);
  map.free_ranges().mark_complete(high);
  EXPECT_EQ(own->oldest(), &low);
  EXPECT_EQ(find(2048), parent.last) << "coalesced with the unused rest";
  complete_up_to(a, 5);
  EXPECT_FALSE(own->in_use(false));
  map.free_ranges().mark_complete(low);
  EXPECT_TRUE(own->empty());
  map.free(wall, alike);
  EXPECT_EQ(find(4096), parent.first);
}

TEST_F(range_allocator_test, neighbours_of_different_streams_coalesce_on_request) {
  gpumem::stream const a{device}, b{device};
  auto& low = map.split_off(whole(), 0, 2048);
  auto& high = map.split_off(*low.upper, 0, 2048);
  low.uses.add({&of(a), 1});
  high.uses.add({&of(b), 1});
  map.free(low, alike);
  map.free(high, alike);
  EXPECT_EQ(parent.largest_run(), 4096u);
  EXPECT_EQ(map.lists().largest(), 2048u);
  map.free_ranges().coalesce_all([&](block const& each) { return &each == &low; });
  EXPECT_EQ(map.free_ranges().coalesces(), 0u);
  map.free_ranges().coalesce_all([](block const&) { return true; });
  EXPECT_EQ(map.free_ranges().coalesces(), 1u);
  EXPECT_EQ(map.lists().multi_stream().oldest()->bytes, 4096u);
  EXPECT_EQ(map.lists().multi_stream().oldest()->uses.size(), 2u);
}

TEST_F(range_allocator_test, freed_memory_coalesces_with_unused_memory_up_to_16_times_its_size) {
  gpumem::stream const a{device};
  for (std::size_t const times : {16, 17}) {
    for (bool const above : {false, true}) {
      range_allocator one;
      chunk whole_of_it{.base = base, .bytes = (times + 1) * 256};
      auto& freed = one.split_off(one.add(whole_of_it, {}), above ? times * 256 : 0, 256);
      freed.uses.add({&of(a), 1});
      auto& range = one.free(freed, unused);
      EXPECT_EQ(range.bytes, times == 16 ? whole_of_it.bytes : 256);
      EXPECT_TRUE(range.uses.find(of(a)));
    }
  }
}

TEST_F(range_allocator_test, freed_memory_of_two_streams_does_not_coalesce_across_unused_memory) {
  gpumem::stream const a{device}, b{device};
  auto& low = map.split_off(whole(), 0, 1024);
  auto& middle = map.split_off(*low.upper, 0, 2048);
  auto& high = *middle.upper;
  map.split_off(high, 0, 1024);
  low.uses.add({&of(a), 1});
  parent.last->uses.add({&of(b), 1});
  map.free(middle, unused);
  auto& joined = map.free(low, unused);
  EXPECT_EQ(joined.bytes, 3072u);
  auto& apart = map.free(*parent.last, unused);
  EXPECT_EQ(apart.bytes, 1024u);
  EXPECT_FALSE(apart.uses.find(of(a)));
}

TEST_F(range_allocator_test, coalescing_beyond_four_streams_is_refused_and_counted) {
  std::vector<gpumem::stream> s;
  for (int i = 0; i < 5; ++i) s.emplace_back(device);
  auto& low = map.split_off(whole(), 0, 2048);
  auto& high = map.split_off(*low.upper, 0, 2048);
  for (std::size_t i = 0; i < 4; ++i) low.uses.add({&of(s[i]), 100});
  high.uses.add({&of(s[4]), 100});
  map.free(low, any);
  map.free(high, any);
  EXPECT_EQ(map.free_ranges().refused_coalesces(), 1u);
  EXPECT_EQ(low.bytes, 2048u);
  map.free_ranges().coalesce_all([](block const&) { return true; });
  EXPECT_EQ(map.free_ranges().coalesces(), 0u);
  complete_up_to(s[0], 100);
  map.free_ranges().prune(low);
  map.free_ranges().coalesce_all([](block const&) { return true; });
  EXPECT_EQ(map.free_ranges().coalesces(), 1u);
  EXPECT_EQ(parent.first->uses.size(), 4u);
}

TEST_F(range_allocator_test, chunk_grows_at_its_end) {
  gpumem::stream const a{device};
  auto& first = map.split_off(whole(), 0, 1024);
  auto& more = map.extend(parent, 4096, {});
  EXPECT_EQ(parent.bytes, 8192u);
  EXPECT_EQ(more.base, base + 1024) << "coalesced with the free memory at the end";
  EXPECT_EQ(more.bytes, 7168u);
  auto& other = map.extend(parent, 256, stream_uses{stream_use{&of(a), 1}});
  EXPECT_EQ(other.bytes, 256u) << "it has other uses";
  EXPECT_EQ(parent.last, &other);
  EXPECT_EQ(first.upper, &more);
  EXPECT_EQ(map.free_bytes(), 7424u);
}

TEST_F(range_allocator_test, removed_memory_leaves_a_hole_that_can_be_filled) {
  auto& hole = map.make_hole(whole(), base + 1024, 1024);
  EXPECT_EQ(map.free_bytes(), 3072u);
  EXPECT_EQ(parent.live_blocks, 0u);
  EXPECT_EQ(parent.find_containing(at(1024)), &hole);
  EXPECT_EQ(map.find_live(at(1024)), nullptr);
  auto& larger = map.make_hole(*hole.upper, hole.upper->base, 1024);
  EXPECT_EQ(&larger, &hole) << "neighbouring holes become one";
  EXPECT_EQ(larger.bytes, 2048u);
  auto& lowest = map.make_hole(*larger.lower, base, 1024);
  EXPECT_EQ(lowest.bytes, 3072u);
  EXPECT_EQ(map.free_bytes(), 1024u);
  auto& middle = map.fill_hole(lowest, 1024, 1024, {});
  EXPECT_EQ(map.free_bytes(), 2048u);
  EXPECT_EQ(parent.find_containing(at(1024)), &middle);
  EXPECT_EQ(middle.bytes, 1024u);
  ASSERT_EQ(middle.lower, parent.first);
  EXPECT_EQ(middle.lower->state(), block_state::hole);
  EXPECT_EQ(middle.upper, &lowest) << "the rest of the hole above";
  EXPECT_EQ(lowest.bytes, 1024u);
  map.fill_hole(*middle.lower, 0, 1024, {});
  map.fill_hole(lowest, 0, lowest.bytes, {});
  EXPECT_EQ(map.free_bytes(), 4096u);
  EXPECT_EQ(find(4096), parent.first);
}

TEST_F(range_allocator_test, hole_can_span_memory_of_several_streams) {
  gpumem::stream const a{device}, b{device}, c{device};
  auto* last = &whole();
  for (auto const* const each : {&a, &b, &c}) {
    last = &map.split_off(*parent.last, 0, 1024);
    last->uses.add({&of(*each), 1});
    map.free(*last, range_allocator::coalescing::same_streams);
  }
  auto& hole = map.make_hole(*last, base + 512, 2048);
  EXPECT_EQ(hole.base, base + 512);
  EXPECT_EQ(hole.bytes, 2048u);
  EXPECT_EQ(map.free_bytes(), 2048u);
  ASSERT_EQ(hole.lower, parent.first);
  EXPECT_TRUE(hole.lower->uses.find(of(a))) << "the rest stays with its stream";
  EXPECT_EQ(hole.lower->bytes, 512u);
  EXPECT_TRUE(hole.upper->uses.find(of(c)));
  EXPECT_EQ(hole.upper->bytes, 512u);
  map.fill_hole(hole, 0, hole.bytes, {});
  map.free_ranges().coalesce_all([](block const&) { return true; });
  EXPECT_EQ(parent.first, parent.last);
  EXPECT_EQ(parent.first->bytes, 4096u);
  EXPECT_EQ(map.free_bytes(), 4096u);
}

// Compares the allocator with a plain map of bytes.
TEST_F(range_allocator_test, random_splits_and_coalescing_keep_every_byte_once) {
  chunk large{.base = std::uintptr_t{1} << 32, .bytes = std::size_t{1} << 20};
  map.add(large, {});
  std::mt19937 random{7};
  std::vector<block*> live;
  std::map<std::uintptr_t, std::size_t> taken;
  for (int i = 0; i < 20'000; ++i) {
    auto const bytes = 256 * (1 + random() % 200);
    auto const alignment = random() % 4 == 0 ? std::size_t{4096} : std::size_t{256};
    std::size_t offset = 0;
    if (auto* const range = map.lists().ready().bins().find(bytes, alignment, offset); range && random() % 2) {
      auto& one = map.split_off(*range, offset, bytes);
      ASSERT_EQ(one.base % alignment, 0u);
      auto const next = taken.emplace(one.base, bytes).first;
      if (next != taken.begin()) ASSERT_LE(std::prev(next)->first + std::prev(next)->second, one.base);
      if (std::next(next) != taken.end()) ASSERT_LE(one.end(), std::next(next)->first);
      ASSERT_EQ(map.find_live(one.pointer()), &one);
      live.push_back(&one);
    } else if (!live.empty()) {
      auto& one = live[random() % live.size()];
      taken.erase(one->base);
      map.free(*one, any);
      one = live.back();
      live.pop_back();
    }
  }
  for (auto* const one : live) map.free(*one, any);
  EXPECT_EQ(map.lists().largest(), large.bytes);
  EXPECT_EQ(map.free_bytes(), large.bytes);
}

TEST_F(range_allocator_test, aligned_request_is_placed_inside_a_range) {
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
