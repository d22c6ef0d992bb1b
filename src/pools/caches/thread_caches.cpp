// The slow paths of thread caches: their storage, evictions and flushes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
module gpumem:thread_caches.impl;
import :thread_caches;
import :block;
import :cache_limits;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

block& stream_cache::pop_largest() noexcept {
  auto const downwards = lists | std::views::reverse;
  return pop(*std::ranges::find_if(downwards, [](block* newest) { return newest != nullptr; }));
}

bool stream_cache::bind_if_empty(stream_timeline& next, event_threshold threshold) noexcept {
  if (count > 0) return false;
  if (unrecorded_frees > 0) flush_counters(*timeline, threshold);
  timeline = &next;
  return true;
}

// Adds this cache's counts to those of the stream: they count the frees after which no event was recorded. If enough
// frees, or the bytes of `threshold`, are counted, requests an event, which the current free then records.
void stream_cache::flush_counters(stream_timeline& stream, event_threshold threshold) noexcept {
  if (stream.epochs().count_unrecorded(unrecorded_frees, unrecorded_bytes, threshold.bytes()))
    stream.event_request().raise();
  unrecorded_frees = 0;
  unrecorded_bytes = 0;
}

bool stream_cache::event_due_unbound(stream_timeline& stream, std::size_t bytes, event_threshold threshold) noexcept {
  if (threshold.counts_frees() && stream.epochs().count_unrecorded(1, bytes, threshold.bytes()))
    stream.event_request().raise();
  return stream.event_request().raised();
}

// Visits the cells in turn. So the oldest block goes first, unless it was inserted into a cell that a request had
// emptied.
block* large_cache::pop_any() noexcept {
  if (used_ == 0) return nullptr;
  auto const from_next = used_ >> next_ << next_;
  auto const i = static_cast<unsigned>(std::countr_zero(from_next ? from_next : used_));
  next_ = (i + 1) % capacity;
  clear(i);
  return cells_[i];
}

void thread_cache::allocate_storage() {
  owned_storage_ = std::make_unique<cache_storage>();
  storage_.store(owned_storage_.get(), std::memory_order_release);
}

block& thread_cache::pop_largest(stream_cache& cache) noexcept {
  auto& found = cache.pop_largest();
  shares_[size_class::kind_of(found.bytes)].uncharge(found.bytes);
  return mark_evicted(found);
}

block* thread_cache::evict_large(large_cache& large_blocks) noexcept {
  auto* const gone = large_blocks.evict();
  if (!gone) return nullptr;
  shares_[size_class::large].uncharge(gone->bytes);
  return &mark_evicted(*gone);
}

// Called for a free that finds no room: another stream has `cache`, or the thread has no budget, and `cache` is the
// next stream cache in turn. Evicts a block of `cache` if it got no block in the last `stale_after` such frees.
// `exhausted`: no other thread could claim the bytes either.
block* thread_cache::evict_stale(cache_limits& limits, stream_cache& cache, bool exhausted) noexcept {
  ++refused_;
  if (exhausted) count_budget_miss(limits);
  return cache.count > 0 && refused_ - cache.last_insert >= tuning::stale_after ? &pop_largest(cache) : nullptr;
}

block* thread_cache::flush(cache_limits& limits, block* chain) noexcept {
  auto* const storage = storage_.load(std::memory_order_relaxed);
  if (!storage) return chain; // no thread of this cache has allocated
  budget_misses_ = 0;
  auto const link = [&](block& block) noexcept {
    block.next = chain;
    chain = &block;
  };
  while (auto* const found = storage->large_blocks.pop_any()) link(mark_evicted(*found));
  for (auto& in : storage->stream_caches) {
    for (auto& list : in.lists) {
      while (list) link(mark_evicted(in.pop(list)));
    }
  }
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) limits.budget(kind).give_back(shares_[kind]);
  return chain;
}

void thread_cache::add_to(cache_counts& sums) const noexcept {
  sums.cached_requested += cached_requested_;
  sums.allocations += allocations_;
  sums.frees += frees_;
  sums.refused += refused_;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) sums.usage[kind].add(shares_[kind]);
}

thread_caches::thread_caches() noexcept {
  for (unsigned i = 0; i < biased_caches; ++i) caches_[i].mutex.enable_bias();
}

block* thread_caches::flush() noexcept {
  block* all = nullptr;
  limits_.reset_exhausted();
  with_all_locked([&] {
    for (auto& each : caches_) {
      each.mutex.assert_held();
      all = each.flush(limits_, all);
    }
  });
  return all;
}

cache_counts thread_caches::snapshot() const noexcept {
  cache_counts all;
  for (auto const& each : caches_) each.add_to(all);
  return all;
}

} // namespace gpumem::detail
