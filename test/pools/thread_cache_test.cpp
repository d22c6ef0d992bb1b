// The cache of one thread alone: its storage, its counts and its flush. thread_caches_test.cpp tests which blocks are
// inserted, returned and evicted.
// SPDX-License-Identifier: Apache-2.0
#include "cache_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::cache_counts;
using gpumem::detail::cache_limits;
using gpumem::detail::size_class;
using gpumem::detail::stream_use;
using gpumem::detail::thread_cache;

namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

class thread_cache_test : public gpumem_test::cache_fixture {
protected:
  thread_cache_test() { limits.set(true, {MiB, MiB, 8 * MiB}, 1, gpumem::detail::event_threshold::never()); }
  bool insert(thread_cache& into, block& freed) {
    return into.insert(limits, freed, stream_use{&timeline, timeline.current_epoch()}).inserted;
  }
  block* pop(thread_cache& from, std::size_t bytes) { return from.pop(limits, timeline, size_class::of(bytes), bytes); }
  block* flush(thread_cache& one, block* others) {
    gpumem::detail::sync::biased_lock const held{one.mutex};
    return one.flush(limits, others);
  }
  static cache_counts counts_of(thread_cache const& one) {
    cache_counts counts;
    one.add_to(counts);
    return counts;
  }

  gpumem::extend::stream_timeline& timeline = of(a);
  cache_limits limits;
  thread_cache one, other;
};

TEST_F(thread_cache_test, cache_without_storage_has_no_blocks) {
  EXPECT_FALSE(one.has_storage());
  EXPECT_FALSE(insert(one, allocated(256)));
  EXPECT_EQ(pop(one, 256), nullptr);
  EXPECT_EQ(flush(one, &blocks[0]), &blocks[0]) << "only the blocks of other caches";
  one.allocate_storage();
  EXPECT_TRUE(one.has_storage());
  EXPECT_TRUE(insert(one, blocks[0]));
  EXPECT_EQ(pop(one, 256), &blocks[0]);
}

TEST_F(thread_cache_test, counts_are_those_of_the_cache) {
  one.allocate_storage();
  other.allocate_storage();
  EXPECT_TRUE(insert(one, allocated(4 * KiB - 100)));
  EXPECT_TRUE(insert(one, allocated(2 * MiB)));
  EXPECT_TRUE(insert(other, allocated(256)));
  EXPECT_NE(pop(one, 2 * MiB), nullptr);
  auto const counts = counts_of(one);
  EXPECT_EQ(counts.frees, 2u);
  EXPECT_EQ(counts.allocations, 1u);
  EXPECT_EQ(counts.cached(), 4 * KiB);
  EXPECT_EQ(counts.cached_requested, static_cast<std::int64_t>(4 * KiB - 100));
  EXPECT_EQ(one.cached_requested(), counts.cached_requested);
}

TEST_F(thread_cache_test, flush_links_the_blocks_before_those_of_other_caches) {
  one.allocate_storage();
  other.allocate_storage();
  for (auto const bytes : {KiB, 128 * KiB, 2 * MiB}) EXPECT_TRUE(insert(one, allocated(bytes)));
  EXPECT_TRUE(insert(other, allocated(KiB)));
  std::size_t count = 0;
  for (auto* each = flush(one, flush(other, nullptr)); each; each = each->next, ++count) {
    EXPECT_EQ(each->state(), block_state::evicted);
  }
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(counts_of(one).cached(), 0u);
  EXPECT_EQ(one.cached_requested(), 0);
  EXPECT_TRUE(limits.is_balanced(cache_limits::usage{})) << "both caches have given back all bytes";
}

} // namespace
