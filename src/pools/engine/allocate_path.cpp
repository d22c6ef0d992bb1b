// Allocates a block from the thread's shard, from all shards, or from new memory; last by the steps of a pool that
// cannot grow.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:allocate_path.impl;
import :allocate_path;
import :backend_parts;
import :backoff;
import :block;
import :chunk_list;
import :deferred_release;
import :device;
import :error;
import :frees;
import :memory_watcher;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :pool_shard;
import :range_allocator;
import :range_search;
import :request_queue;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :sync;
import :thread_caches;

namespace gpumem::detail {
namespace {

// The statistics that count the allocations by each way to reuse memory, in the order of `reuse_tier`.
inline constexpr std::array<std::uint64_t statistics::*, 4> reuses{
    &statistics::reuse_same_stream, &statistics::reuse_ordered, &statistics::reuse_completed,
    &statistics::reuse_waited};

// In the order of `reuse_tier`.
inline constexpr std::array<extend::served_by, 5> served{extend::served_by::same_stream, extend::served_by::ordered,
                                                         extend::served_by::completed, extend::served_by::stream_wait,
                                                         extend::served_by::new_memory};

// After this many steals the thread's own shard grows instead, since each steal locks all shards.
// Utilization: half none, double +.006.
constexpr unsigned max_steals = std::max(sync::contention_threshold / 8, 2u);
// Two steals that are more than this many locked calls of the thread's shard apart do not add up to `max_steals`.
constexpr std::uint64_t steal_window = 1024;

GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) bool steals_expired(pool_shard const& thief) noexcept {
  return thief.counters.locked_calls - thief.last_steal > steal_window;
}

GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void count_steal(pool_shard& thief) noexcept {
  ++thief.counters.steals;
  if (steals_expired(thief)) thief.steals = 0;
  ++thief.steals;
  thief.last_steal = thief.counters.locked_calls;
}

} // namespace

allocate_path::allocate_path(pool_parts& parts, shard_frees& frees, request_queue& queue) noexcept
    : parts_{parts}, frees_{frees}, queue_{queue}, search_{parts.options.cross_stream, parts.rules},
      largest_block_{parts.options.largest_block && !parts.options.hardened.enabled
                         ? size_class::of(parts.options.largest_block).bytes
                         : SIZE_MAX} {}

// Returns whether the thread of the shard `thief` has lately taken `max_steals` blocks from other threads' shards. Then
// that shard should grow instead.
bool allocate_path::steals_too_often(pool_shard const& thief) const noexcept {
  return !parts_.shards.single() && thief.steals >= max_steals && !steals_expired(thief);
}

// Allocates from the thread's own shard, and locks no other shard. Returns null also if the request needs the locks of
// all shards. If the pool has one shard, does not poll streams for completed work: the caller then calls search_all(),
// which polls them under the lock of the same shard.
void* allocate_path::allocate_from_own(allocation_request& request) {
  request.shard = parts_.shards.uncontended_shard(request.thread, request.bytes);
  if (!request.shard || !parts_.caches.has_storage(request.thread)) [[unlikely]]
    return nullptr;
  auto& shard = *request.shard;
  shard_lock const lock{parts_.shards, shard};
  bool const shared = parts_.shards.is_shared(request.bytes); // such requests make no shard active
  if (!parts_.mode.may_use_one_lock(request.key.identity().timeline()) || (shard.rounds_left == 0 && !shared))
      [[unlikely]]
    return nullptr;
  if (!shared) shard.rounds_left = pool_shard::rounds_active;
  frees_.drain_remote_frees(shard);
  shard_span const shards{&request.shard, 1};
  auto const place =
      parts_.shards.single() ? search_.find_without_poll(request, shards) : search_.find(request, shards);
  if (!place) [[unlikely]]
    return nullptr;
  auto* const p = commit(request, place);
  ++shard.counters.locked_calls;
  return p;
}

// Searches all shards. If that finds nothing, moves the blocks of the thread caches to the free ranges and searches
// again, as long as there are such blocks.
void* allocate_path::search_all(allocation_request const& request) {
  frees_.drain_all_remote_frees();
  do {
    if (auto const place = search_.find(request, shard_list::search_order{parts_.shards, *request.shard, false}))
      return commit(request, place);
  } while (frees_.flush_thread_caches());
  return nullptr;
}

// Serves a thread that should not take single blocks out of other threads' shards. Searches its own shard, and then
// moves an idle chunk of another shard into it. If this returns null, the caller grows the thread's shard. Leaves the
// small blocks on quick lists, which keep them for requests of their size. Coalescing them here halved the speed of
// threads that allocate what other threads free.
void* allocate_path::search_own(allocation_request const& request) {
  request.shard->steals = 0;
  auto place = search_.find(request, {&request.shard, 1});
  if (!place) place = parts_.backend->migrate_chunk(request);
  return place ? commit(request, place) : nullptr;
}

// Searches all shards, also ranges that other streams still use. Makes the request's stream wait on the device for the
// uses of the range that it gets.
void* allocate_path::search_with_wait(allocation_request const& request) {
  auto const place = search_.find_with_wait(request, shard_list::search_order{parts_.shards, *request.shard, false});
  return place ? commit(request, place) : nullptr;
}

// Grows the pool by memory of the upstream, and allocates the block there. Unless `exact`, gets more memory than the
// request needs. The result is retry() if another thread grew the pool meanwhile, or if the new memory is not enough.
// The caller then searches again. Unlocks the shards during calls of the upstream.
attempt<void*> allocate_path::grow(allocation_request const& request, bool exact) {
  if (upstream_call::runs_here(parts_.shards))
    return unexpected<failure>{failure_of(broken_rule::inside_growth, request.requested)};
  if (parts_.backend->wait_for_growth()) return attempt<void*>::retry();
  try {
    auto const grown = parts_.backend->grow(request, exact);
    if (grown.has_failed()) return unexpected<failure>{grown.error()};
    auto* const allocated = grown.is_done() ? commit(request, grown.value()) : nullptr;
    parts_.passes.notify();
    if (auto const when = parts_.backend->next_look()) parts_.passes.schedule_at(*when);
    frees_.flush_beyond_threshold();
    return allocated ? attempt<void*>{allocated} : attempt<void*>::retry();
  } catch (...) {
    frees_.flush_beyond_threshold();
    throw;
  }
}

// Allocates the block of the request at the place that a search has found. Returns its address.
void* allocate_path::commit(allocation_request const& request, placement place) {
  auto& owner_shard = *place.range->parent->shard;
  bool const waits = request.key.context().queues() == queueing::admitted;
  bool const ready = waits && place.range->uses.completed();
  auto& block = split_off(request, place);
  if (waits) [[unlikely]]
    block.was_ready = ready;
  block.requested = request.requested;
  block.stream = &request.key.identity().timeline();
  block.class_number = request.class_number;
  block.allocated_at = owner_shard.counters.locked_calls;
  ++owner_shard.live_blocks;
  parts_.shards.count_live(owner_shard, static_cast<std::int64_t>(request.requested),
                           parts_.caches.cached_requested_of(request.thread), parts_.chunks.reserved());
  if (&owner_shard != request.shard && !owner_shard.spare) [[unlikely]]
    count_steal(*request.shard);
  ++owner_shard.counts.allocations;
  last_served = served[static_cast<std::size_t>(place.how)];
  if (place.how != reuse_tier::none) [[likely]]
    ++(owner_shard.counts.*reuses[static_cast<std::size_t>(place.how)]);
  return block.pointer();
}

// Splits a block off a range. If the block is small and the range is large, splits off more blocks of that size, which
// serve later requests.
[[gnu::always_inline]] block& allocate_path::split_off(allocation_request const& request, placement place) {
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

// Takes memory of closed pools first. Then empties the thread caches and searches again: first as usual, then for
// memory for which the stream must wait. After that the host waits for streams, and the pool replaces unused memory by
// new memory. A pool of pages unmaps only as many unused pages as the request needs, so it does that before the host
// waits. A pool of chunks gives back all unused chunks, so it does that only after the wait.
expected<void*, failure> allocate_path::allocate_without_growth(allocation_request& request, failure const& error) {
  if (error.reason == outcome::invalid_argument)
    return unexpected<failure>{error}; // the growth is called from inside itself
  request.growth_failed = true;
  request.drop_rounding(parts_.smallest_block);
  bool const within_limit = parts_.chunks.headroom() >= request.bytes;
  if (within_limit && release_closed_pools(error)) {
    if (auto const grown = grow_or_search(request)) return grown;
  }
  frees_.flush_for_request();
  if (auto* const p = search_all(request)) return p;
  if (auto* const p = search_with_wait(request)) return p;
  expected<void*, failure> grown = unexpected<failure>{error};
  if (error.reason == outcome::device_lost) return grown;
  if (is_never_met(request, error))
    return unexpected<failure>{failure{outcome::too_large, error.code, request.requested}};
  if (parts_.backend->paged() && (grown = grow_in_place(request))) return grown;
  if (request.key.context().may_wait()) {
    if (auto* const p = sync_and_retry(request)) return p;
  }
  grown = grow_in_place(request);
  if (grown || grown.error().reason != outcome::too_large || is_never_met(request, grown.error())) return grown;
  return unexpected<failure>{failure{outcome::exhausted, grown.error().code, request.requested}};
}

// Returns whether no state of the pool could serve the request, which has failed for the reason `failure`.
bool allocate_path::is_never_met(allocation_request const& request, failure const& failure) const {
  auto const& backend = *parts_.backend;
  if (!backend.could_hold(request.bytes, request.alignment)) return true;
  return failure.reason == outcome::too_large && !backend.has_chunk_for(request.bytes, request.alignment);
}

bool allocate_path::release_closed_pools(failure const& failure) noexcept {
  if (failure.reason != outcome::exhausted || !deferred_release::any_closed()) return false;
  auto const where = parts_.where;
  all_shards_unlock const during{parts_.shards};
  return deferred_release::give_back_complete(where ? where->ordinal() : -1);
}

// Polls and searches once more: otherwise memory whose work has just completed would be unmapped and mapped again. Then
// moves unused pages together to hold the request. If that fails, gives unused memory back to the upstream, and gets
// new memory for the request instead.
expected<void*, failure> allocate_path::grow_in_place(allocation_request const& request) {
  if (parts_.backend->paged()) {
    parts_.rules.poll_young_events(&request.key, parts_.shards.everywhere());
    if (auto* const p = search_all(request)) return p;
  }
  if (auto const place = parts_.backend->move_at_limit(request)) return commit(request, place);
  parts_.backend->release_for(request);
  auto const grown = grow_or_search(request);
  if (!grown && request.can_park() && parts_.backend->ask_for_release()) parts_.passes.schedule();
  return grown;
}

expected<void*, failure> allocate_path::grow_or_search(allocation_request const& request) {
  for (;;) {
    auto const grown = grow(request, true);
    if (grown.is_done()) return grown.value();
    if (grown.has_failed()) return unexpected<failure>{grown.error()};
    if (auto* const p = search_all(request)) return p;
  }
}

// Returns whether the request could succeed after streams have completed their work: from free memory, or from new
// memory after the pool has given back unused memory.
bool allocate_path::sync_could_help(allocation_request const& request) const {
  if (!reuse_rules::may_complete(parts_.shards.everywhere())) return false;
  if (parts_.backend->paged() && parts_.shards.free_bytes() + parts_.chunks.headroom() >= request.bytes) return true;
  std::size_t run = 0;
  parts_.chunks.visit([&](chunk const& each) { run = std::max(run, each.largest_run()); });
  if (run >= request.bytes &&
      (parts_.options.cross_stream != reuse_policy::ordered || request.key.identity().is_host()))
    return true;
  return parts_.chunks.largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls the streams for up to `tuning::max_host_wait`, and searches after each poll. Returns null if the searches find
// nothing. The caller then gives back the chunks that have become unused.
void* allocate_path::sync_and_retry(allocation_request const& request) {
  auto const deadline = sync::now() + tuning::max_host_wait;
  parts_.rules.poll_streams(nullptr, parts_.shards.everywhere());
  for (backoff pause{tuning::max_poll_pause}; sync_could_help(request);) {
    if (parts_.lost() || sync::now() >= deadline) return nullptr;
    {
      all_shards_unlock const during{parts_.shards};
      sync::sleep_for(pause.next());
    }
    parts_.rules.poll_streams(nullptr, parts_.shards.everywhere());
    if (auto* const p = search_after_sync(request)) return p;
    if (!request.loan) continue; // no search serves a loan: it needs pages that are complete by now
    if (auto const grown = grow_in_place(request)) return *grown;
  }
  return search_after_sync(request);
}

void* allocate_path::search_after_sync(allocation_request const& request) {
  auto* const p = search_all(request);
  if (p) ++request.shard->counts.reuse_after_sync;
  return p;
}

expected<void*, failure> allocate_path::allocate(stream_key const& key, size_class size, std::size_t bytes,
                                                 std::size_t alignment) noexcept {
  auto const asked = key.asked();
  auto const result =
      try_allocate({asked, bytes, size.bytes, size.number, std::max(alignment, granule), sync::thread_index()});
  if (!result && result.error().reason == outcome::exhausted && !parts_.options.failure_report.empty() &&
      key.context().queues() == queueing::none) [[unlikely]]
    append_failure_report(parts_, frees_, result.error());
  return result;
}

expected<void*, failure> allocate_path::lend(stream_key const& key, loan_terms const& terms,
                                             std::size_t bytes) noexcept {
  auto const now = key.asked();
  return try_allocate({.key = now,
                       .requested = bytes,
                       .bytes = bytes,
                       .class_number = size_class::count,
                       .alignment = granule,
                       .thread = sync::thread_index(),
                       .loan = &terms});
}

[[gnu::always_inline]] inline expected<void*, failure>
allocate_path::try_allocate(allocation_request request) noexcept {
  auto const& key = request.key;
  auto const bytes = request.requested;
  if (key.identity().capturing()) [[unlikely]]
    return fail(request, outcome::capture_unsupported);
  auto const limit = parts_.chunks.limit();
  if (parts_.mode.near_limit() || (limit && request.bytes > limit)) [[unlikely]]
    request.drop_rounding(parts_.smallest_block);
  if (!parts_.serves(key)) [[unlikely]] {
    static_cast<void>(fail(request, outcome::invalid_argument));
    return unexpected<failure>{failure_of(broken_rule::unopened_device, bytes)};
  }
  bool const beyond_limit = limit && request.bytes > limit;
  bool const too_large = bytes > largest_block_ && !key.context().for_chunk() && !request.loan;
  if (beyond_limit || too_large) [[unlikely]]
    return fail(request, outcome::too_large);
  if (!parts_.requests.is_open()) [[unlikely]] {
    if (auto const why = queue_.refusal_at_admission(request)) return fail(request, *why);
  }
  try {
    request.key.identity().timeline().prepare();
  } catch (...) {
    // No spare event could be made. So frees on this stream record no event until a later call makes one. The stream
    // itself still reuses its memory.
  }
  try {
    if (auto* const p = request.loan ? nullptr : allocate_from_own(request)) [[likely]]
      return p;
    return allocate_from_all(request);
  } catch (std::bad_alloc const&) {
    static_cast<void>(fail(request, outcome::exhausted));
    return unexpected<failure>{no_host_memory(bytes)};
  }
}

expected<void*, failure> allocate_path::allocate_from_all(allocation_request& request) {
  all_shards_lock const lock{parts_.shards};
  enter(request);
  // If a thread has often allocated from the shards of other threads, it searches and grows its own shard first. With
  // the option `shard_per_thread` each thread does so.
  bool const avoids_steals = parts_.options.shard_per_thread || steals_too_often(*request.shard);
  for (bool own_shard = avoids_steals && !request.loan;;) {
    frees_.run_deferred(&request.key);
    if (auto* const p = own_shard ? search_own(request) : search_all(request)) return p;
    auto const new_memory = grow(request, false);
    if (new_memory.is_done()) return new_memory.value();
    if (new_memory.must_retry()) continue;
    if (own_shard) {
      own_shard = false;
      continue;
    }
    auto const found = allocate_without_growth(request, new_memory.error());
    if (found) return found;
    count_failure(*request.shard, request, found.error().reason);
    if (!parts_.lost()) return found;
    return unexpected<failure>{failure{outcome::device_lost, parts_.where->lost_error(), request.requested}};
  }
}

// Prepares a request under the locks of all shards. While requests wait, each call takes all these locks, so a shard of
// its own would not help the thread.
void allocate_path::enter(allocation_request& request) {
  auto& shards = parts_.shards;
  if (shards.begin_allocation(request.bytes, !parts_.requests.has_waiting())) parts_.mode.update();
  request.shard = shards.is_shared(request.bytes) ? shards.all().front().get() : &shards.shard_of_thread();
  ++request.shard->counters.locked_calls;
  request.shard->counters.all_locked_calls += parts_.shards.all().size() > 1;
  parts_.mode.add_stream(request.key.identity().timeline());
  parts_.caches.ensure_storage(request.thread);
}

expected<void*, failure> allocate_path::fail(allocation_request const& request, outcome reason) noexcept {
  auto& shard = parts_.shards.shard_of_thread();
  shard_lock const lock{parts_.shards, shard};
  count_failure(shard, request, reason);
  return unexpected<failure>{failure{reason, 0, request.requested}};
}

// A request that waits for memory counts as failed when it ends, not at each attempt: see request_queue.
void allocate_path::count_failure(pool_shard& shard, allocation_request const& request, outcome reason) noexcept {
  shard.counts.failures += request.key.context().ends_if(reason);
}

} // namespace gpumem::detail
