// The thread caches alone: whose blocks they return, when they refuse or evict one, and that no block or byte is lost.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "cache_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

import gpumem;

using gpumem::detail::block;
using gpumem::detail::block_state;
using gpumem::detail::event_threshold;
using gpumem::detail::size_class;
using gpumem::detail::stream_use;
using gpumem::detail::thread_caches;

namespace {

namespace sync = gpumem::detail::sync;
namespace tuning = gpumem::detail::tuning;
constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;
constexpr auto never = event_threshold::never();

class thread_caches_test : public gpumem_test::cache_fixture {
protected:
  thread_caches_test() {
    caches.ensure_storage(thread);
    set_budgets(MiB, 8 * MiB, 8 * MiB);
  }
  void set_budgets(std::size_t small, std::size_t medium, std::size_t large, event_threshold threshold = never) {
    caches.set_limits(true, {small, medium, large}, 1, threshold);
  }

  gpumem::detail::thread_cache::result insert(block& freed, gpumem::stream const& on) {
    return caches.insert(freed, stream_use{&of(on), of(on).current_epoch()}, thread);
  }
  // Inserts a new block, which must be kept, and returns it.
  block& keep(std::size_t bytes, gpumem::stream const& on) {
    auto& one = allocated(bytes);
    EXPECT_TRUE(insert(one, on).inserted);
    return one;
  }
  block* pop(gpumem::stream const& on, std::size_t bytes) {
    return caches.pop(of(on), size_class::of(bytes), bytes, thread);
  }
  // Returns the blocks of a flush; fails if it returns one twice.
  std::set<block*> flush() {
    std::set<block*> all;
    for (auto* each = caches.flush(); each; each = each->next) {
      EXPECT_TRUE(all.insert(each).second);
      EXPECT_EQ(each->state(), block_state::evicted);
    }
    return all;
  }
  bool is_balanced(std::size_t too_many = 0) {
    bool all = false;
    caches.visit_locked([&](gpumem::detail::cache_counts counts) {
      counts.usage[size_class::small].in_use += too_many;
      all = caches.is_balanced(counts);
    });
    return all;
  }
  // Returns a stream that has the same stream cache as `a`, or another one.
  gpumem::stream& other_stream(bool same_cache) {
    constexpr auto stream_caches = sync::max_biased_threads / 4;
    for (;;) {
      auto& made = streams.emplace_back(device);
      if ((of(made).index() % stream_caches == of(a).index() % stream_caches) != same_cache) continue;
      clear_counts(made);
      return made;
    }
  }

  gpumem::device device = gpumem::device::current();
  std::deque<gpumem::stream> streams;
  unsigned const thread = sync::thread_index();
  thread_caches caches;
};

TEST_F(thread_caches_test, block_serves_its_stream_and_size_once) {
  auto& other = other_stream(false);
  auto& kept = keep(4 * KiB, a);
  EXPECT_EQ(kept.state(), block_state::cached);
  EXPECT_EQ(pop(other, 4 * KiB), nullptr);
  EXPECT_EQ(pop(a, 8 * KiB), nullptr);
  EXPECT_EQ(pop(a, 4 * KiB - 100), &kept);
  EXPECT_TRUE(kept.is_live());
  EXPECT_EQ(kept.requested, 4 * KiB - 100);
  EXPECT_EQ(kept.stream, &of(a));
  EXPECT_TRUE(kept.uses.empty());
  EXPECT_EQ(pop(a, 4 * KiB), nullptr);
}

TEST_F(thread_caches_test, newest_block_of_a_size_is_allocated_first) {
  auto& first = keep(4 * KiB, a);
  auto& second = keep(4 * KiB, a);
  auto& third = keep(4 * KiB, a);
  for (auto* const each : {&third, &second, &first}) EXPECT_EQ(pop(a, 4 * KiB), each);
}

TEST_F(thread_caches_test, block_also_serves_the_next_two_smaller_classes_if_these_are_close) {
  auto const bytes_of = [](unsigned number) { return (number + 1) * gpumem::detail::granule; };
  constexpr auto close = gpumem::detail::stream_cache::first_close_class;
  auto& kept = keep(bytes_of(close + 2), a);
  EXPECT_EQ(kept.class_number, close + 2);
  EXPECT_EQ(pop(a, bytes_of(close - 1)), nullptr) << "three classes smaller";
  EXPECT_EQ(pop(a, bytes_of(close)), &kept);
  keep(bytes_of(close), a);
  EXPECT_EQ(pop(a, bytes_of(close - 1)), nullptr) << "not close to the next class";
}

TEST_F(thread_caches_test, large_block_serves_only_its_exact_size) {
  auto& kept = keep(2 * MiB, a);
  EXPECT_EQ(pop(a, 2 * MiB - 256), nullptr);
  EXPECT_EQ(pop(b, 2 * MiB), nullptr);
  EXPECT_EQ(pop(a, 2 * MiB), &kept);
}

TEST_F(thread_caches_test, disabled_caches_neither_take_nor_give_blocks) {
  auto& kept = keep(4 * KiB, a);
  caches.set_limits(false, {MiB, MiB, MiB}, 1, never);
  EXPECT_FALSE(insert(allocated(4 * KiB), a).inserted);
  EXPECT_FALSE(caches.call_if_enabled([] { ADD_FAILURE(); }));
  EXPECT_EQ(pop(a, 4 * KiB), nullptr);
  EXPECT_EQ(flush(), std::set{&kept}) << "a flush finds what was kept before";
}

TEST_F(thread_caches_test, thread_without_storage_keeps_nothing) {
  auto const other = thread + 1;
  EXPECT_FALSE(caches.has_storage(other));
  auto& one = allocated(4 * KiB);
  EXPECT_FALSE(caches.insert(one, stream_use{&of(a), 1}, other).inserted);
  EXPECT_TRUE(one.is_live());
  EXPECT_EQ(caches.pop(of(a), size_class::of(4 * KiB), 4 * KiB, other), nullptr);
}

TEST_F(thread_caches_test, small_block_without_budget_is_refused) {
  set_budgets(8 * KiB, MiB, MiB);
  keep(4 * KiB, a);
  keep(4 * KiB, a);
  auto const refused = insert(allocated(256), a);
  EXPECT_FALSE(refused.inserted);
  EXPECT_EQ(refused.evicted, nullptr);
  EXPECT_EQ(caches.snapshot().refused, 1u);
  EXPECT_NE(pop(a, 4 * KiB), nullptr);
  keep(256, a);
  EXPECT_TRUE(is_balanced());
}

TEST_F(thread_caches_test, medium_block_without_budget_goes_to_the_large_cache) {
  set_budgets(MiB, 128 * KiB, MiB);
  auto& first = keep(128 * KiB, a);
  auto& second = keep(128 * KiB, a);
  auto const usage = caches.snapshot().usage;
  EXPECT_EQ(usage[size_class::medium].in_use, 128 * KiB);
  EXPECT_EQ(usage[size_class::large].in_use, 128 * KiB);
  EXPECT_EQ(pop(a, 128 * KiB), &first) << "the stream cache first";
  EXPECT_EQ(pop(a, 128 * KiB), &second);
  EXPECT_EQ(caches.snapshot().cached(), 0u);
}

TEST_F(thread_caches_test, large_block_evicts_the_oldest_one_if_the_budget_is_used) {
  auto& first = keep(2 * MiB, a);
  for (int i = 0; i < 3; ++i) keep(2 * MiB, a);
  auto const more = insert(allocated(2 * MiB), b);
  EXPECT_TRUE(more.inserted);
  EXPECT_EQ(more.evicted, &first);
  EXPECT_EQ(first.state(), block_state::evicted);
  EXPECT_EQ(caches.snapshot().cached(), 8 * MiB);
  EXPECT_TRUE(is_balanced());
}

TEST_F(thread_caches_test, block_that_is_too_large_is_refused_but_evicts_another) {
  auto const largest = 8 * MiB / tuning::large_block_fraction;
  EXPECT_EQ(insert(allocated(largest + 256), a).evicted, nullptr) << "there is no other";
  auto& kept = keep(largest, a);
  auto const refused = insert(allocated(largest + 256), a);
  EXPECT_FALSE(refused.inserted);
  EXPECT_EQ(refused.evicted, &kept);
  set_budgets(MiB, 0, tuning::always_cached_bytes);
  keep(tuning::always_cached_bytes, a); // although it is all of the budget
}

TEST_F(thread_caches_test, stream_cache_gives_way_after_frees_of_another_stream) {
  auto& other = other_stream(true);
  keep(256, a);
  auto& largest = keep(4 * KiB, a);
  keep(256, a);
  for (unsigned i = 0; i < tuning::stale_after - 1; ++i) EXPECT_EQ(insert(allocated(256), other).evicted, nullptr);
  auto const refused = insert(allocated(256), other);
  EXPECT_FALSE(refused.inserted) << "the cache still has blocks of the first stream";
  EXPECT_EQ(refused.evicted, &largest);
  for (int i = 0; i < 2; ++i) EXPECT_NE(insert(allocated(256), other).evicted, nullptr);
  auto& kept = keep(256, other);
  EXPECT_EQ(pop(a, 256), nullptr);
  EXPECT_EQ(pop(other, 256), &kept);
}

TEST_F(thread_caches_test, free_of_its_own_stream_keeps_a_stream_cache) {
  auto& other = other_stream(true);
  for (int round = 0; round < 3; ++round) {
    keep(256, a);
    for (unsigned i = 0; i < tuning::stale_after - 1; ++i) EXPECT_EQ(insert(allocated(256), other).evicted, nullptr);
  }
}

TEST_F(thread_caches_test, block_of_a_stream_without_frees_is_evicted_for_a_stream_without_budget) {
  auto& other = other_stream(false);
  set_budgets(4 * KiB, MiB, MiB);
  auto& stale = keep(4 * KiB, other);
  auto& freed = allocated(4 * KiB);
  unsigned count = 1;
  auto got = insert(freed, a);
  for (; !got.evicted && count < 2 * tuning::stale_after; ++count) got = insert(freed, a);
  EXPECT_EQ(got.evicted, &stale);
  EXPECT_GE(count, tuning::stale_after);
  EXPECT_LE(count, tuning::stale_after + 16) << "the stream caches are visited in turn";
  EXPECT_EQ(caches.snapshot().refused, count);
  EXPECT_TRUE(insert(freed, a).inserted);
}

TEST_F(thread_caches_test, one_in_a_batch_of_frees_is_refused_so_that_it_may_record_an_event) {
  clear_counts(a);
  set_budgets(MiB, MiB, 8 * MiB, event_threshold{SIZE_MAX - 1});
  for (unsigned batch = 1; batch <= tuning::frees_per_event / gpumem::detail::stream_epochs::frees_per_batch; ++batch) {
    EXPECT_FALSE(of(a).event_request().raised());
    for (unsigned i = 1; i < gpumem::detail::stream_epochs::frees_per_batch; ++i) {
      keep(4 * KiB, a);
      ASSERT_NE(pop(a, 4 * KiB), nullptr);
    }
    EXPECT_FALSE(insert(allocated(4 * KiB), a).inserted) << batch;
  }
  EXPECT_TRUE(of(a).event_request().raised()) << "after `frees_per_event` frees";
  EXPECT_FALSE(insert(allocated(4 * KiB), a).inserted) << "until a free records it";
  EXPECT_FALSE(insert(allocated(2 * MiB), a).inserted);
  EXPECT_TRUE(is_balanced());
}

TEST_F(thread_caches_test, free_beyond_the_threshold_of_bytes_requests_an_event) {
  clear_counts(a);
  set_budgets(MiB, MiB, 8 * MiB, event_threshold{16 * KiB});
  keep(8 * KiB, a);
  EXPECT_FALSE(insert(allocated(8 * KiB), a).inserted);
  EXPECT_TRUE(of(a).event_request().raised());
  set_budgets(MiB, MiB, 8 * MiB);
  EXPECT_FALSE(insert(allocated(8 * KiB), a).inserted) << "requested for other reasons, too";
  clear_counts(a);
  for (unsigned i = 0; i < 2 * gpumem::detail::stream_epochs::frees_per_batch; ++i) keep(4 * KiB, a);
}

TEST_F(thread_caches_test, large_free_of_a_stream_without_a_stream_cache_counts) {
  auto& other = other_stream(true);
  clear_counts(other);
  set_budgets(MiB, MiB, 8 * MiB, event_threshold{4 * MiB});
  keep(256, a); // takes the stream cache of both
  keep(2 * MiB, other);
  EXPECT_FALSE(insert(allocated(2 * MiB), other).inserted);
  EXPECT_TRUE(of(other).event_request().raised());
  clear_counts(other);
}

TEST_F(thread_caches_test, flush_returns_every_block_once_and_all_budgets) {
  std::set<block*> kept;
  for (auto* const on : {&a, &other_stream(false)}) {
    for (auto const bytes : {KiB / 4, KiB / 4, 4 * KiB, 128 * KiB, 2 * MiB}) kept.insert(&keep(bytes, *on));
  }
  EXPECT_EQ(kept.size(), 10u);
  EXPECT_GT(caches.cached_requested_of(thread), 0);
  EXPECT_EQ(flush(), kept);
  EXPECT_EQ(flush(), (std::set<block*>{}));
  auto const sums = caches.snapshot();
  EXPECT_EQ(sums.cached(), 0u);
  EXPECT_EQ(sums.cached_requested, 0);
  for (auto const& each : sums.usage) EXPECT_EQ(each.allowance, 0) << "unclaimed again";
  EXPECT_TRUE(is_balanced());
}

TEST_F(thread_caches_test, cached_bytes_and_budgets_add_up) {
  EXPECT_TRUE(is_balanced());
  for (auto const bytes : {KiB / 4, 60 * KiB, 128 * KiB, 2 * MiB}) {
    keep(bytes, a);
    EXPECT_TRUE(is_balanced());
  }
  EXPECT_FALSE(is_balanced(1)) << "a byte too many";
  EXPECT_NE(pop(a, 60 * KiB), nullptr);
  set_budgets(KiB, KiB, KiB);
  EXPECT_TRUE(is_balanced()) << "claimed bytes beyond a smaller budget stay claimed";
  flush();
  EXPECT_TRUE(is_balanced());
}

TEST_F(thread_caches_test, many_frees_without_budget_are_reported_until_the_next_flush) {
  set_budgets(0, MiB, MiB);
  auto& freed = allocated(256);
  for (unsigned i = 1; i < gpumem::detail::thread_cache::max_budget_misses; ++i)
    ASSERT_FALSE(insert(freed, a).inserted);
  EXPECT_FALSE(caches.budget_exhausted());
  EXPECT_FALSE(insert(freed, a).inserted);
  EXPECT_TRUE(caches.budget_exhausted());
  flush();
  EXPECT_FALSE(caches.budget_exhausted());
}

} // namespace
