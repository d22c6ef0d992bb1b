// Small blocks: their sizes, how they are split into runs and kept in quick lists, and what happens when memory runs
// short.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using gpumem::pool_resource;
using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::chunk;
using gpumem::detail::range_allocator;
using gpumem::detail::size_class;

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

TEST(size_classes, small_and_medium_classes_waste_an_eighth_at_most) {
  std::set<unsigned> numbers;
  std::size_t last = 0;
  for (std::size_t bytes = 1; bytes <= size_class::largest_medium; ++bytes) {
    auto const size = size_class::of(bytes);
    ASSERT_GE(size.bytes, bytes);
    ASSERT_GE(size.bytes, last) << "not in order";
    ASSERT_EQ(size.bytes % 256, 0u);
    ASSERT_EQ(size_class::of(size.bytes).bytes, size.bytes);
    ASSERT_EQ(size.is_small(), bytes <= size_class::largest_small);
    ASSERT_TRUE(size.is_numbered());
    if (size.is_small()) ASSERT_EQ(size_class::number_of_small(size.bytes), size.number);
    ASSERT_LE(size.bytes - bytes, std::max<std::size_t>(255, bytes / 8)) << bytes;
    if (size.bytes != last) ASSERT_EQ(size.number, numbers.size()) << bytes;
    numbers.insert(size.number);
    last = size.bytes;
  }
  EXPECT_EQ(last, size_class::largest_medium);
  EXPECT_EQ(numbers.size(), size_class::count);
  EXPECT_EQ(size_class::of(size_class::largest_small).number + 1u, size_class::small_count);
}

TEST(size_classes, large_sizes_are_in_granules_and_have_no_class) {
  for (std::size_t bytes = MiB + 1; bytes < 8 * MiB; bytes += 1000) {
    auto const size = size_class::of(bytes);
    ASSERT_EQ(size.bytes, (bytes + 255) / 256 * 256);
    ASSERT_FALSE(size.is_numbered());
  }
  EXPECT_EQ(size_class::of(std::size_t{PTRDIFF_MAX} + 1).bytes, std::size_t{PTRDIFF_MAX} + 1);
}

TEST(size_classes, sizes_are_small_or_large_if_medium_sizes_have_no_class) {
  EXPECT_TRUE(size_class::of(64 * KiB, size_class::largest_small).is_small());
  auto const medium = size_class::of(64 * KiB + 1, size_class::largest_small);
  EXPECT_EQ(medium.bytes, 64 * KiB + 256);
  EXPECT_FALSE(medium.is_numbered());
}

class quick_lists_test : public gpumem_test::simulated_test {
protected:
  std::vector<std::size_t> sizes() {
    std::vector<std::size_t> all;
    parent.visit([&](block const& each) { all.push_back(each.bytes); });
    return all;
  }
  chunk parent{.base = 0x10000, .bytes = 16 * KiB};
  range_allocator map;
};

TEST_F(quick_lists_test, blocks_split_off_one_range_coalesce_again) {
  auto& first = map.split_run(map.add(parent, {}), KiB);
  EXPECT_EQ(sizes(), (std::vector<std::size_t>{KiB, KiB, KiB, KiB, KiB, KiB, KiB, KiB, 8 * KiB}));
  EXPECT_TRUE(first.is_live());
  EXPECT_EQ(parent.live_blocks, 1u);
  EXPECT_EQ(map.free_bytes(), 15 * KiB);

  auto& kept = map.lists().ready().quick();
  EXPECT_EQ(kept.head(KiB), first.upper) << "the neighbour is granted next";
  EXPECT_EQ(kept.head(2 * KiB), nullptr);
  auto& second = *kept.head(KiB);
  map.pop_quick(second);
  EXPECT_EQ(second.requested, 0u);
  EXPECT_EQ(parent.live_blocks, 2u);
  EXPECT_EQ(map.find_live(second.pointer()), &second);

  map.push_quick(first);
  EXPECT_EQ(first.state(), block_state::quick_listed);
  EXPECT_EQ(kept.head(KiB), &first);
  EXPECT_EQ(map.free_bytes(), 15 * KiB);
  EXPECT_EQ(map.lists().largest(), 8 * KiB) << "apart";

  EXPECT_TRUE(map.flush_quick_lists());
  EXPECT_EQ(sizes(), (std::vector<std::size_t>{KiB, KiB, 14 * KiB}));
  EXPECT_EQ(map.find_live(first.pointer()), nullptr);
  EXPECT_EQ(map.free_bytes(), 15 * KiB);
  EXPECT_FALSE(map.flush_quick_lists());
  map.free(second, range_allocator::coalescing::same_streams);
  EXPECT_EQ(sizes(), std::vector<std::size_t>{16 * KiB});
}

TEST_F(quick_lists_test, list_keeps_a_bounded_number_of_blocks) {
  parent.bytes = 256 * KiB;
  std::vector<block*> live;
  block* range = &map.add(parent, {});
  for (int i = 0; i < 100; ++i) {
    live.push_back(&map.split_off(*range, 0, KiB));
    range = live.back()->upper;
  }
  std::size_t kept = 0;
  for (auto* const each : live) {
    if (map.push_quick(*each))
      ++kept;
    else
      map.free(*each, range_allocator::coalescing::same_streams);
  }
  EXPECT_EQ(kept, 64u);
  EXPECT_EQ(map.lists().ready().quick().room(KiB), 0u);
  EXPECT_EQ(map.free_bytes(), parent.bytes);
  auto& next = map.split_run(*parent.last, KiB); // no block of the run is free beside it
  EXPECT_EQ(next.bytes, KiB);
  map.free(next, range_allocator::coalescing::same_streams);
  EXPECT_TRUE(map.flush_quick_lists());
  EXPECT_EQ(sizes(), std::vector<std::size_t>{256 * KiB});
}

// Blocks from the quick lists are older than those freed since.
TEST_F(quick_lists_test, blocks_coalesce_in_the_order_of_their_epochs) {
  gpumem::stream const on{gpumem::device::current()};
  auto& order = on.key().identity().timeline();
  parent.bytes = 256 * KiB;
  std::vector<block*> live;
  block* range = &map.add(parent, {});
  for (int i = 0; i < 64; ++i) {
    live.push_back(&map.split_off(*range, 0, KiB));
    range = live.back()->upper;
  }
  auto const put = [&](std::size_t i, gpumem::extend::epoch newest, bool apart) {
    live[i]->uses.add({&order, newest});
    if (apart)
      ASSERT_TRUE(map.push_quick(*live[i]));
    else
      map.free(*live[i], range_allocator::coalescing::same_streams);
  };
  for (std::size_t i = 0; i < 64; i += 4) put(i, 100 - i, true); // every fourth block, with live neighbours
  for (std::size_t i = 2; i < 64; i += 4) put(i, 30 + i, false);
  EXPECT_TRUE(map.flush_quick_lists());
  auto const& own = *map.lists().find(order);
  gpumem::extend::epoch last = 0;
  std::size_t count = 0;
  for (auto const* each = own.oldest(); each; each = each->newer, ++count) {
    EXPECT_GE(each->uses.begin()->newest, last);
    last = each->uses.begin()->newest;
  }
  EXPECT_EQ(count, 32u);
  for (std::size_t i = 1; i < 64; i += 2) map.free(*live[i], range_allocator::coalescing::any);
}

class small_blocks : public gpumem_test::simulated_test {
protected:
  template <class Pool> static auto quick_list_hits(Pool& pool) {
    return static_cast<gpumem::detail::pool_state*>(pool.services().state)->engine().read_counters().quick_list_hits;
  }
  template <class Pool> static std::vector<void*> many(Pool& pool, gpumem::stream const& on, std::size_t count) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(pool.allocate(on, KiB));
    return blocks;
  }
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  gpumem_test::recording_upstream upstream;
};

TEST_F(small_blocks, small_blocks_are_split_off_one_range) {
  pool_resource r{upstream};
  auto blocks = many(r, a, 8);
  EXPECT_EQ(quick_list_hits(r), 7u);
  std::set<void*> const distinct(blocks.begin(), blocks.end());
  EXPECT_EQ(distinct.size(), 8u);
  EXPECT_EQ(static_cast<char*>(*distinct.rbegin()) - static_cast<char*>(*distinct.begin()), 7 * 1024);
  for (auto* const each : blocks) r.deallocate(a, each, KiB);
}

// More small blocks than the thread caches may keep.
TEST_F(small_blocks, small_blocks_stay_with_a_stream_that_still_runs) {
  pool_resource r{upstream, {.initial_size = 16 * MiB}};
  r.deallocate(b, r.allocate(b, KiB), KiB);
  auto freed = many(r, a, 8192);
  std::set<void*> const all(freed.begin(), freed.end());
  simulator::work(a, {simulator::write(freed[0], KiB)}, std::chrono::seconds{1});
  for (auto* const each : freed) r.deallocate(a, each, KiB);
  auto const hits = quick_list_hits(r);
  auto const others = many(r, b, 512);
  for (auto* const each : others) EXPECT_FALSE(all.contains(each));
  auto const again = many(r, a, 8192);
  std::size_t same = 0;
  for (auto* const each : again) same += all.contains(each);
  EXPECT_GT(same, 8000u);
  EXPECT_GT(quick_list_hits(r) - hits, 2000u);
  EXPECT_EQ(r.statistics().reuse_waited, 0u);
  for (auto* const each : again) r.deallocate(a, each, KiB);
  for (auto* const each : others) r.deallocate(b, each, KiB);
}

TEST_F(small_blocks, small_blocks_are_coalesced_before_the_pool_grows) {
  pool_resource r{upstream, {.initial_size = 4 * MiB}};
  auto blocks = many(r, a, 4096);
  EXPECT_EQ(r.statistics().upstream_allocations, 1u);
  for (auto* const each : blocks) r.deallocate(a, each, KiB);
  auto* const whole = r.allocate(a, 4 * MiB);
  EXPECT_EQ(r.statistics().upstream_allocations, 1u);
  r.deallocate(a, whole, 4 * MiB);
}

TEST_F(small_blocks, small_blocks_go_back_with_their_chunk) {
  pool_resource r{upstream, {.initial_size = 4 * MiB}};
  auto blocks = many(r, a, 4096);
  for (auto* const each : blocks) r.deallocate(a, each, KiB);
  simulator::run_until_idle();
  a.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(r.statistics().reserved, 0u);
}

// At the limit any stream may take them after the work of their stream.
TEST_F(small_blocks, quick_lists_serve_other_streams_at_the_limit) {
  pool_resource r{upstream, {.initial_size = 4 * MiB, .limit = 4 * MiB}};
  auto blocks = many(r, a, 4096);
  for (auto* const each : blocks) {
    simulator::work(a, {simulator::write(each, KiB)});
    r.deallocate(a, each, KiB);
  }
  auto const taken = [&] {
    gpumem_test::running_device const running;
    return r.allocate(b, 64 * KiB);
  }();
  ASSERT_TRUE(taken);
  simulator::work(b, {simulator::write(taken, 64 * KiB)});
  r.deallocate(b, taken, 64 * KiB);
}

TEST_F(small_blocks, double_free_of_a_small_block_is_found) {
  static std::vector<gpumem::misuse> told;
  auto const before = gpumem::set_misuse_handler([](gpumem::misuse const& m) noexcept { told.push_back(m); });
  pool_resource r{upstream};
  auto blocks = many(r, a, 4096);
  for (auto* const each : blocks) r.deallocate(a, each, KiB);
  r.deallocate(a, blocks.back(), KiB); // the last is in a quick list, the first in the thread cache
  r.deallocate(a, blocks.front(), KiB);
  gpumem::set_misuse_handler(before);
  ASSERT_EQ(told.size(), 2u);
  for (auto const& each : told) EXPECT_EQ(each.what, gpumem::misuse::kind::double_free);
}

} // namespace
