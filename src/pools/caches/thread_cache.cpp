// The slow paths of a thread cache: its storage, evictions and flushes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
module gpumem:thread_cache.impl;
import :thread_cache;
import :block;
import :cache_budget;
import :cache_limits;
import :large_cache;
import :stream_cache;
import :tuning;

namespace gpumem::detail {

void thread_cache::allocate_storage() {
  owned_storage_ = std::make_unique<cache_storage>();
  storage_.store(owned_storage_.get(), std::memory_order_release);
}

block& thread_cache::pop_largest(stream_cache& in) noexcept {
  auto& found = in.pop_largest();
  shares_[size_class::kind_of(found.bytes)].uncharge(found.bytes);
  return mark_evicted(found);
}

block* thread_cache::evict_large(large_cache& large_blocks) noexcept {
  auto* const gone = large_blocks.evict();
  if (!gone) return nullptr;
  shares_[size_class::large].uncharge(gone->bytes);
  return &mark_evicted(*gone);
}

// A stream cache keeps the blocks of one stream. This is called if a block of another stream is freed and could not get
// the stream cache `in`. Evicts a block if that has happened more than `max_foreign_frees` times in a row.
block* thread_cache::evict_for_other_stream(stream_cache& in) noexcept {
  return ++in.foreign_frees > tuning::max_foreign_frees ? &pop_largest(in) : nullptr;
}

// Called for a free for which the cache has no budget. `exhausted`: no other thread could claim the bytes either. Every
// `stale_scan_interval`th such free looks for a stream that the thread does not use any more, and evicts a block of it.
block* thread_cache::evict_over_budget(cache_limits& limits, cache_storage& all, bool exhausted) noexcept {
  ++over_budget_;
  if (exhausted) count_budget_miss(limits);
  return over_budget_ % tuning::stale_scan_interval == 0 ? evict_stale(all) : nullptr;
}

block* thread_cache::evict_stale(cache_storage& all) noexcept {
  for (auto& in : all.stream_caches) {
    if (in.count == 0 || over_budget_ - in.last_insert < tuning::stale_after) continue;
    return &pop_largest(in);
  }
  return nullptr;
}

block* thread_cache::flush(cache_limits& limits, block* others) noexcept {
  auto* const all = storage_.load(std::memory_order_relaxed);
  if (!all) return others; // no thread of this cache has allocated
  budget_misses_ = 0;
  auto const link = [&](block& found) noexcept {
    found.next = others;
    others = &found;
  };
  while (auto* const found = all->large_blocks.pop_any()) link(mark_evicted(*found));
  for (auto& in : all->stream_caches) {
    for (auto& list : in.lists) {
      while (list) link(mark_evicted(in.pop(list)));
    }
  }
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) limits.budget(kind).release(shares_[kind]);
  return others;
}

void thread_cache::add_to(cache_counts& sums) const noexcept {
  sums.cached_requested += cached_requested_;
  sums.allocations += allocations_;
  sums.frees += frees_;
  sums.over_budget += over_budget_;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) sums.usage[kind].add(shares_[kind]);
}

} // namespace gpumem::detail
