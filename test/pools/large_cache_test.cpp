// The large cache of a thread: finds blocks by stream and size, evicts in turn, and disables itself without hits.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::stream_use;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class large_cache_test : public gpumem_test::simulated_test {
protected:
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  block& freed(std::size_t bytes, gpumem::stream const& on) {
    auto& one = made[count++];
    one.bytes = bytes;
    one.uses.assign(stream_use{&of(on), 1});
    return one;
  }
  void fill() {
    while (!cache.full()) cache.insert(freed((count + 1) * MiB, a));
  }
  // Returns the number of evictions until the cache disables itself, at most 1000.
  int evict_while_worthwhile() {
    int evicted = 0;
    for (; cache.enabled() && evicted < 1000; ++evicted) {
      count = 0;
      cache.insert(freed(MiB, a));
      EXPECT_NE(cache.evict(), nullptr);
    }
    return evicted;
  }
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  std::array<block, 64> made;
  std::size_t count = 0;
  gpumem::detail::large_cache cache;
};

TEST_F(large_cache_test, block_is_found_once_by_stream_and_exact_size) {
  auto& first = freed(MiB, a);
  auto& second = freed(MiB, b);
  auto& third = freed(2 * MiB, a);
  for (auto* const each : {&first, &second, &third}) cache.insert(*each);
  EXPECT_EQ(cache.pop(of(a), MiB + 256), nullptr);
  EXPECT_EQ(cache.pop(of(b), 2 * MiB), nullptr);
  EXPECT_EQ(cache.pop(of(b), MiB), &second);
  EXPECT_EQ(cache.pop(of(b), MiB), nullptr) << "no longer cached";
  EXPECT_EQ(cache.pop(of(a), 2 * MiB), &third);
  EXPECT_FALSE(cache.empty());
  EXPECT_EQ(cache.pop(of(a), MiB), &first);
  EXPECT_TRUE(cache.empty());
}

// Blocks are looked up by fingerprints, which may collide: here the difference in address cancels that in size.
TEST_F(large_cache_test, blocks_with_equal_fingerprints_are_distinguished) {
  auto const apart = reinterpret_cast<std::uintptr_t>(&of(a)) - reinterpret_cast<std::uintptr_t>(&of(b));
  auto& first = freed(2 * MiB, a);
  auto& second = freed(2 * MiB + apart, b);
  cache.insert(first);
  EXPECT_EQ(cache.pop(of(b), 2 * MiB + apart), nullptr);
  cache.insert(second);
  EXPECT_EQ(cache.pop(of(b), 2 * MiB + apart), &second) << "after the other one";
  EXPECT_EQ(cache.pop(of(a), 2 * MiB), &first);
}

TEST_F(large_cache_test, all_blocks_of_one_size_are_found) {
  for (int i = 0; i < 3; ++i) cache.insert(freed(MiB, a));
  for (int i = 0; i < 3; ++i) EXPECT_NE(cache.pop(of(a), MiB), nullptr);
  EXPECT_EQ(cache.pop(of(a), MiB), nullptr);
}

TEST_F(large_cache_test, blocks_are_evicted_in_turn) {
  fill();
  EXPECT_EQ(count, gpumem::detail::large_cache::capacity);
  EXPECT_EQ(cache.evict(), &made[0]);
  EXPECT_EQ(cache.pop(of(a), 2 * MiB), &made[1]);
  fill(); // in both places that became free
  EXPECT_EQ(cache.evict(), &made[count - 1]) << "where the second was";
  EXPECT_EQ(cache.evict(), &made[2]);
  for (std::size_t left = gpumem::detail::large_cache::capacity - 2; left > 0; --left)
    EXPECT_NE(cache.pop_any(), nullptr);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.pop_any(), nullptr);
  EXPECT_EQ(cache.evict(), nullptr);
}

TEST_F(large_cache_test, cache_without_hits_is_disabled_and_tried_again) {
  ASSERT_TRUE(cache.enabled());
  auto const evicted = evict_while_worthwhile();
  EXPECT_GT(evicted, 16);
  EXPECT_LT(evicted, 1000);
  int left_out = 1;
  while (!cache.enabled()) ASSERT_LT(++left_out, 100'000);
  EXPECT_GT(left_out, 8 * evicted) << "seldom";

  cache.insert(freed(MiB, a));
  ASSERT_NE(cache.pop(of(a), MiB), nullptr);
  EXPECT_LT(evict_while_worthwhile(), evicted) << "for a short time";
}

TEST_F(large_cache_test, cache_with_few_hits_stays_enabled) {
  for (int i = 0; i < 1000; ++i) {
    count = 0;
    cache.insert(freed(MiB, a));
    (i % 5 == 0 ? cache.pop(of(a), MiB) : cache.evict());
    ASSERT_TRUE(cache.enabled());
  }
}

TEST_F(large_cache_test, block_that_cannot_be_cached_counts_as_a_miss) {
  for (int i = 0; cache.enabled(); ++i) {
    ASSERT_LT(i, 1000);
    ASSERT_EQ(cache.evict(), nullptr);
  }
}

TEST_F(large_cache_test, flushed_blocks_are_not_counted) {
  for (int i = 0; i < 1000; ++i) {
    count = 0;
    cache.insert(freed(MiB, a));
    ASSERT_NE(cache.pop_any(), nullptr);
  }
  EXPECT_TRUE(cache.enabled());
}

} // namespace
