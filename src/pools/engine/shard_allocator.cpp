// Searches shards for a free range, lets the pool grow, and splits a block off.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
module gpumem:shard_allocator.impl;
import :shard_allocator;
import :block;
import :error;
import :frees;
import :growth_lock;
import :pool_backend;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :stream;
import :sync;
import :thread_caches;
import :tuning;

namespace gpumem::detail {
namespace {

// The statistics that count the allocations by each way to reuse memory, in the order of `reuse_tier`.
inline constexpr std::array<std::uint64_t statistics::*, 4> reuses{
    &statistics::reuse_same_stream, &statistics::reuse_ordered, &statistics::reuse_completed,
    &statistics::reuse_waited};

[[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] bool
steals_expired(pool_shard const& thief) noexcept {
  return thief.counters.locked_calls - thief.last_steal > tuning::steal_window;
}

[[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
count_steal(pool_shard& thief) noexcept {
  ++thief.counters.steals;
  if (steals_expired(thief)) thief.steals = 0;
  ++thief.steals;
  thief.last_steal = thief.counters.locked_calls;
}

} // namespace

bool shard_allocator::steals_too_often(pool_shard const& thief) const noexcept {
  return !parts_.shards.single() && thief.steals >= tuning::max_steals && !steals_expired(thief);
}

void* shard_allocator::allocate_from_own(allocation_request& request) {
  request.shard = parts_.shards.uncontended_shard(request.thread, request.bytes);
  if (!request.shard || !parts_.caches.has_storage(request.thread)) [[unlikely]]
    return nullptr;
  auto& shard = *request.shard;
  shard_lock const held{parts_.shards, shard};
  bool const shared = parts_.shards.is_shared(request.bytes); // such requests make no shard active
  if (!parts_.mode.may_use_one_lock(request.key.timeline()) || (shard.rounds_left == 0 && !shared)) [[unlikely]]
    return nullptr;
  if (!shared) shard.rounds_left = pool_shard::rounds_active;
  frees_.drain_remote_frees(shard);
  shard_span const among{&request.shard, 1};
  auto const place = parts_.shards.single() ? search_.find_without_poll(request, among) : search_.find(request, among);
  if (!place) [[unlikely]]
    return nullptr;
  auto* const p = commit(request, place);
  ++shard.counters.locked_calls;
  return p;
}

void* shard_allocator::search_all(allocation_request const& request) {
  frees_.drain_all_remote_frees();
  do {
    if (auto const place = search_.find(request, shard_list::search_order{parts_.shards, *request.shard, false}))
      return commit(request, place);
  } while (frees_.flush_thread_caches());
  return nullptr;
}

// Searches the thread's own shard, and then the idle chunks of the other shards. Leaves the small blocks on quick
// lists, which keep them for requests of their size. Coalescing them here halved the speed of threads that allocate
// what other threads free.
void* shard_allocator::search_own(allocation_request const& request) {
  request.shard->steals = 0;
  auto place = search_.find(request, {&request.shard, 1});
  if (!place) place = parts_.backend.migrate_chunk(request);
  return place ? commit(request, place) : nullptr;
}

void* shard_allocator::search_with_wait(allocation_request const& request) {
  auto const place = search_.find_with_wait(request, shard_list::search_order{parts_.shards, *request.shard, false});
  return place ? commit(request, place) : nullptr;
}

attempt<void*> shard_allocator::grow(allocation_request const& request, bool exact) {
  if (upstream_call::runs_here(parts_.shards))
    return unexpected<failure>{failure_of(broken_rule::inside_growth, request.requested)};
  if (parts_.backend.wait_for_growth()) return attempt<void*>::retry();
  try {
    auto const grown = parts_.backend.grow(request, exact);
    if (grown.has_failed()) return unexpected<failure>{grown.error()};
    auto* const allocated = grown.is_done() ? commit(request, grown.value()) : nullptr;
    parts_.notify();
    frees_.flush_beyond_threshold();
    return allocated ? attempt<void*>{allocated} : attempt<void*>::retry();
  } catch (...) {
    frees_.flush_beyond_threshold();
    throw;
  }
}

void* shard_allocator::commit(allocation_request const& request, placement place) {
  auto& from = *place.range->parent->shard;
  bool const waits = request.key.queues() == queueing::admitted;
  bool const ready = waits && place.range->uses.completed();
  auto& taken = split_off(request, place);
  if (waits) [[unlikely]]
    taken.was_ready = ready;
  taken.requested = request.requested;
  taken.stream = &request.key.timeline();
  taken.class_number = request.class_number;
  ++from.live_blocks;
  parts_.count_live(from, static_cast<std::int64_t>(request.requested),
                    parts_.caches.cached_requested_of(request.thread));
  if (&from != request.shard && !from.spare) [[unlikely]]
    count_steal(*request.shard);
  ++from.counts.allocations;
  if (place.how != reuse_tier::none) [[likely]]
    ++(from.counts.*reuses[static_cast<std::size_t>(place.how)]);
  return taken.pointer();
}

// Splits a block off a range. If the block is small and the range is large, splits off more blocks of that size, which
// serve later requests.
[[gnu::always_inline]] block& shard_allocator::split_off(allocation_request const& request, placement place) {
  auto& from = *place.range->parent->shard;
  if (place.range->state() == block_state::quick_listed) {
    from.ranges.pop_quick(*place.range);
    ++from.counters.quick_list_hits;
    return *place.range;
  }
  bool const run =
      parts_.mode.fast_path() && request.is_small() && place.range->bytes >= tuning::min_blocks_for_run * request.bytes;
  return run ? from.ranges.split_run(*place.range, request.bytes)
             : from.ranges.split_off(*place.range, place.offset, request.bytes);
}

} // namespace gpumem::detail
