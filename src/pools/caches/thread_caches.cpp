// The slow paths of the thread caches: events, evictions, limits and flushes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
module gpumem:thread_caches.impl;
import :thread_caches;
import :block;
import :stream_cache;
import :cache_budget;
import :large_cache;
import :size_class;
import :sync;
import :stream_timeline;
import :tuning;

namespace gpumem::detail {
thread_caches::thread_caches() noexcept {
  for (unsigned i = 0; i < biased_caches; ++i) caches_[i].mutex.enable_bias();
}

void thread_caches::allocate_storage(thread_cache& mine) {
  all_storage_.push_back(std::make_unique<cache_storage>());
  mine.storage.store(all_storage_.back().get(), std::memory_order_release);
}

// Gives an empty stream cache to the first stream that frees into it.
bool thread_caches::bind_empty(stream_cache& one, stream_timeline& timeline) const noexcept {
  if (one.count > 0) return false;
  if (one.unrecorded_frees > 0) flush_counters(one, *one.timeline);
  one.timeline = &timeline;
  return true;
}

// Passes the counts of frees on to the timeline. If they reach its threshold, requests an event, which this free then
// records.
void thread_caches::flush_counters(stream_cache& one, stream_timeline& timeline) const noexcept {
  if (timeline.epochs().count_unrecorded(one.unrecorded_frees, one.unrecorded_bytes, event_threshold_bytes()))
    timeline.event_request().raise();
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
}

block& thread_caches::pop_largest(thread_cache& mine, stream_cache& in) noexcept {
  auto& found = in.pop_largest();
  mine.shares[size_class::kind_of(found.bytes)].uncharge(found.bytes);
  return mark_evicted(mine, found);
}

// Same as event_due(), for a stream that has no stream cache here.
bool thread_caches::event_due_unbound(stream_timeline& timeline, std::size_t bytes) const noexcept {
  auto const threshold = event_threshold_bytes();
  if (threshold != SIZE_MAX && timeline.epochs().count_unrecorded(1, bytes, threshold))
    timeline.event_request().raise();
  return timeline.event_request().raised();
}

block* thread_caches::evict(thread_cache& mine, large_cache& large_blocks) noexcept {
  auto* const gone = large_blocks.evict();
  if (!gone) return nullptr;
  mine.shares[size_class::large].uncharge(gone->bytes);
  return &mark_evicted(mine, *gone);
}

// Evicts a block of the stream that owns the stream cache, if the last 16 frees or more were of other streams.
block* thread_caches::evict_for_other_stream(thread_cache& mine, stream_cache& in) noexcept {
  return ++in.foreign_frees > tuning::max_foreign_frees ? &pop_largest(mine, in) : nullptr;
}

// Called for a free that found no budget; `exhausted`: the budget has too few unclaimed bytes for any thread. Every
// 32nd such free looks for a stream that the thread does not use any more, and evicts a block of it.
block* thread_caches::evict_over_budget(thread_cache& mine, cache_storage& all, bool exhausted) noexcept {
  ++mine.over_budget;
  if (exhausted) count_budget_miss(mine);
  return mine.over_budget % tuning::stale_scan_interval == 0 ? evict_stale(mine, all) : nullptr;
}

block* thread_caches::evict_stale(thread_cache& mine, cache_storage& all) noexcept {
  for (auto& in : all.stream_caches) {
    if (in.count == 0 || mine.over_budget - in.last_insert < tuning::stale_after) continue;
    return &pop_largest(mine, in);
  }
  return nullptr;
}

void thread_caches::set_limits(bool on, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
                               std::size_t event_threshold_bytes) noexcept {
  for (auto const kind : {size_class::small, size_class::medium}) {
    budgets_[kind].set_total(limits[kind], limits[kind] / threads);
  }
  auto const large = limits[size_class::large];
  budgets_[size_class::large].set_total(large,
                                        large); // no bound per thread: each thread caches eight large blocks at most
  largest_.store(std::min(large, std::max(large / tuning::large_block_fraction, tuning::always_cached_bytes)),
                 std::memory_order_relaxed);
  event_threshold_bytes_.store(event_threshold_bytes, std::memory_order_relaxed);
  enabled_.store(on, std::memory_order_relaxed);
}

block* thread_caches::flush() noexcept {
  block* all = nullptr;
  budget_exhausted_.store(false, std::memory_order_relaxed);
  with_all_locked([&] {
    for (auto& each : caches_) {
      each.mutex.assert_held();
      auto* const kept = each.storage.load(std::memory_order_relaxed);
      if (!kept) continue; // no thread with this index has allocated
      each.budget_misses = 0;
      all = evict_all(each, *kept, all);
      for (std::size_t kind = 0; kind < size_class::kinds; ++kind) budgets_[kind].release(each.shares[kind]);
    }
  });
  return all;
}

// Removes all blocks of one cache, and links them before `others`.
block* thread_caches::evict_all(thread_cache& from, cache_storage& all, block* others) noexcept {
  auto const link = [&](block& found) noexcept {
    found.next = others;
    others = &found;
  };
  while (auto* const found = all.large_blocks.pop_any()) link(mark_evicted(from, *found));
  for (auto& in : all.stream_caches) {
    for (auto& list : in.lists) {
      while (list) link(mark_evicted(from, in.pop(list)));
    }
  }
  return others;
}

bool thread_caches::is_balanced(cache_counts const& sum) const noexcept {
  bool all = true;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all = all && budgets_[kind].is_balanced(sum.usage[kind]);
  return all;
}

cache_counts thread_caches::snapshot() const noexcept {
  cache_counts all;
  for (auto const& each : caches_) {
    all.cached_requested += each.cached_requested;
    all.allocations += each.allocations;
    all.frees += each.frees;
    all.over_budget += each.over_budget;
    for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all.usage[kind].add(each.shares[kind]);
  }
  return all;
}

} // namespace gpumem::detail
