// Frees under the lock of one shard or of all; adds uses to live blocks; reports misuse of pointers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:free_path.impl;
import :free_path;
import :block;
import :chunk_list;
import :cuda;
import :error;
import :free_lists;
import :frees;
import :misuse;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :request_queue;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :sync;
import :thread_caches;
import :waiter;

namespace gpumem::detail {
namespace {

GPUMEM_REQUIRES(one_shard, all_shards)
void explain(pool_parts& parts, stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
             late_misuse& wrong) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) {
    wrong.set({what, pointer, bytes.value_or(0), expected, key.identity().id(), parts.options.name.c_str()});
  };
  auto const* const parent = parts.chunks.find_containing(pointer);
  auto const* const found = parent ? parent->find_containing(pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return refuse(misuse::kind::foreign_pointer, 0);
  std::size_t const requested = found->requested;
  if (found->state() == block_state::deferred) return refuse(misuse::kind::double_free, requested);
  if (!found->is_live()) return refuse(misuse::kind::double_free, 0);
  refuse(found->pointer() != pointer ? misuse::kind::foreign_pointer : misuse::kind::wrong_size, requested);
}

} // namespace

block* find_or_explain(pool_parts& parts, stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                       late_misuse& wrong) noexcept {
  auto* const found = parts.shards.find_live(pointer).that;
  if (found && found->is_live() && (!bytes || *bytes == found->requested)) return found;
  explain(parts, key, pointer, bytes, wrong);
  return nullptr;
}

// Counts a free. Returns whether the frees of the stream that no event covers have reached the threshold for an event.
// Counts first in the stream's free list of `shard`. Adds the sums to the counter of the whole stream later, so
// that threads that use the same stream rarely write that shared counter.
bool free_path::reaches_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& shard) noexcept {
  auto const threshold = parts_.mode.event_threshold_bytes();
  auto* const list = shard.ranges.lists().find(timeline);
  if (!list) [[unlikely]]
    return timeline.epochs().count_unrecorded(1, bytes, threshold);
  if (!list->count_free(bytes, threshold)) [[likely]]
    return false;
  auto const frees = std::exchange(list->unrecorded_frees, 0);
  return timeline.epochs().count_unrecorded(frees, std::exchange(list->unrecorded_bytes, 0), threshold);
}

// Records an event for a free if another stream or the host may soon want memory. Records one for each free of a loan,
// since its borrower may want the same addresses on another stream. The event shows them when the work on the block is
// complete. `bytes`: the size of the block. Returns the use of the call with the epoch of the event, or with its
// present epoch if none was recorded.
[[gnu::always_inline]] inline stream_use free_path::record_if_due(free_call const& call, std::size_t bytes,
                                                                  pool_shard& shard) noexcept {
  auto& timeline = *call.use.timeline;
  bool const many = parts_.mode.multi_stream() && reaches_threshold(timeline, bytes, shard);
  bool const due = many || shard.lends || timeline.event_request().raised() || parts_.mode.under_pressure();
  return due ? record_event(call.key, call.use) : call.use;
}

// Records an event on the stream of the use, and returns the use with the epoch of the event. Records none, and returns
// `use` itself, in three cases: if the call has no handle of the stream, if memory stays with its stream
// (reuse_policy::ordered), and on an error.
stream_use free_path::record_event(stream_key const& key, stream_use const& use) noexcept {
  bool const shared = parts_.options.cross_stream != reuse_policy::ordered;
  if (key.identity().has_handle() && shared && !parts_.lost()) {
    if (auto const recorded = use.timeline->record_at_free(key.identity().handle())) return {use.timeline, recorded};
  }
  return use;
}

// Completes a free after the attempt to put the block into a thread cache. First frees the block that the cache has
// evicted, then the caller's block. The second free returns `last` if the pool has no block left.
free_result free_path::free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                                 cached_free const& cached) noexcept {
  auto const evicted = cached.result.evicted ? free_evicted_block(*cached.result.evicted) : free_result::done;
  if (cached.result.inserted) return evicted;
  if (!parts_.serves(key)) [[unlikely]] {
    report_unopened(key, pointer, bytes);
    return free_result::refused;
  }
  free_call const call{key, pointer, bytes, cached.use};
  if (cached.freed.that) return free_uncached(call, cached.freed);
  // A block of another shard goes back to that shard. If this thread cached the block, each later free of it would
  // search all shards. It caches the block nevertheless if its size is shared, near the limit of the pool, or if the
  // other shard is spare. Otherwise the thread may find no block of its own, and an allocation from another shard takes
  // the locks of all shards.
  auto const seen = parts_.shards.find_live(pointer);
  bool const keeps = seen.that && !seen.shard->lends &&
                     (parts_.mode.near_limit() || seen.shard->spare || parts_.shards.is_shared(seen.that->bytes));
  if (!keeps || !may_cache(*seen.that, key, bytes)) return free_uncached(call, seen);
  auto const result = parts_.caches.insert(*seen.that, cached.use, sync::thread_index());
  auto const ended = result.evicted ? free_evicted_block(*result.evicted) : free_result::done;
  return result.inserted ? ended : free_uncached(call, seen);
}

void free_path::report_unopened(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const* const resource = parts_.options.name.c_str();
  report_misuse({misuse::kind::unopened_device, pointer, bytes.value_or(0), 0, key.identity().id(), resource});
}

// Does not ask whether the block's own stream captures, if that is not known and one lock suffices. While the stream
// captures, it records no event, so no other stream gets the block. For another stream's block, the answer decides
// whether that stream's work becomes a use.
free_result free_path::free_uncached(free_call const& call, shard_list::lookup const& lookup) noexcept {
  bool const own_stream = lookup.that && lookup.that->stream == &call.key.identity().timeline();
  auto const key = own_stream ? call.key : call.key.asked();
  if (free_to_shard({key, call.pointer, call.bytes, call.use}, lookup)) return free_result::done;
  auto const asked = own_stream ? key.asked() : key;
  return free_with_all_locks({asked, call.pointer, call.bytes, call.use});
}

// Frees under the lock of the block's shard only. Returns false, and frees nothing, if the call needs the locks of all
// shards, or if its pointer or size is wrong.
[[gnu::always_inline]] bool free_path::free_to_shard(free_call const& call, shard_list::lookup const& lookup) noexcept {
  if (!lookup.that || call.key.identity().capturing() || parts_.caches.budget_exhausted()) [[unlikely]]
    return false;
  auto& shard = *lookup.shard;
  if (!shard.mutex.try_lock()) {
    if (push_remote_free(call, lookup)) return true;
    parts_.shards.lock_contended(shard);
  }
  shard_lock const lock{shard, std::adopt_lock};
  auto& freed = *lookup.that;
  if (!frees_.goes_to_quick_list(freed)) freed.prefetch_neighbours(); // coalescing reads them at the end of the call
  bool const right = parts_.mode.may_use_one_lock(*call.use.timeline) && freed.pointer() == call.pointer &&
                     freed.is_live() && call.fits(freed);
  if (right) [[likely]]
    free_under_lock(freed, call, shard);
  return right;
}

// Leaves the free to the next holder of the shard's lock. Returns false for a block that must not be cached, and
// while caching is off. It does so too while only one stream has used the pool: its frees record no events, but a
// remote free may record one.
bool free_path::push_remote_free(free_call const& call, shard_list::lookup const& lookup) noexcept {
  auto const threshold = parts_.caches.threshold();
  if (!lookup.that || !may_cache(*lookup.that, call.key, call.bytes) || !threshold.counts_frees()) return false;
  auto& timeline = *call.use.timeline;
  bool const many = timeline.epochs().count_unrecorded(1, lookup.that->bytes, threshold.bytes());
  bool const due = many || lookup.shard->lends || timeline.event_request().raised();
  auto const use = due ? record_event(call.key, call.use) : call.use;
  return parts_.caches.call_if_enabled([&] { lookup.shard->remote_frees.push(*lookup.that, use); });
}

free_result free_path::free_with_all_locks(free_call const& call) noexcept {
  auto const& key = call.key;
  late_misuse wrong;
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  frees_.drain_all_remote_frees();
  if (!key.identity().capturing()) frees_.run_deferred(&key);
  auto* const freed = find_or_explain(parts_, key, call.pointer, call.bytes, wrong);
  if (!freed) return free_result::refused;
  auto& shard = *freed->parent->shard;
  shard.counters.all_locked_calls += parts_.shards.all().size() > 1;
  parts_.mode.add_stream(key.identity().timeline());
  free_under_lock(*freed, call, shard);
  if (parts_.caches.budget_exhausted()) frees_.flush_thread_caches();
  queue_.wake_next(waiters);
  monitor_.schedule_look(); // now waiting work may hold all memory
  return requests_.is_pool_unused() ? free_result::last : free_result::done;
}

// Frees a block that a thread cache has evicted. Returns `last` if the pool has no handle, live block or request any
// more.
free_result free_path::free_evicted_block(block& cached) noexcept {
  auto& shard = *cached.parent->shard;
  auto const& timeline = *cached.uses.begin()->timeline;
  {
    shard_lock const lock{parts_.shards, shard};
    if (parts_.mode.may_use_one_lock(timeline)) [[likely]] {
      ++shard.counters.locked_calls;
      frees_.free_evicted_block(cached);
      return free_result::done;
    }
  }
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  ++shard.counters.locked_calls;
  shard.counters.all_locked_calls += parts_.shards.all().size() > 1;
  frees_.run_deferred(nullptr);
  parts_.mode.add_stream(timeline);
  frees_.free_evicted_block(cached);
  queue_.wake_next(waiters);
  return requests_.is_pool_unused() ? free_result::last : free_result::done;
}

[[gnu::always_inline]] void free_path::free_under_lock(block& returned, free_call const& call,
                                                       pool_shard& shard) noexcept {
  auto const& key = call.key;
  parts_.shards.count_live(shard, -static_cast<std::int64_t>(returned.requested), 0, parts_.chunks.reserved());
  ++shard.counts.frees;
  ++shard.counters.locked_calls;
  --shard.live_blocks;
  if (key.identity().capturing()) [[unlikely]]
    return [&] {
      assert_all_shards_held(); // a free inside a capture holds all locks
      frees_.defer(returned, key);
    }();
  if (!returned.uses.empty()) [[unlikely]]
    parts_.rules.prune(returned.uses);
  // A free by the host means that the streams' work on the block is complete, except uses declared by record_use(). So
  // it adds no use.
  if (!key.identity().is_host()) [[likely]]
    returned.uses.add(record_if_due(call, returned.bytes, shard));
  frees_.free_block(returned);
}

// No work has used the block since it was granted. If it was ready then, it is freed without a use of the stream. The
// end of such a use would count as a change, after which the request would try again, for ever.
void free_path::return_part(stream_key const& key, void* pointer) noexcept {
  all_shards_lock const lock{parts_.shards};
  auto& freed = *parts_.shards.find_live(pointer).that;
  auto const& by = freed.was_ready ? stream_key::host() : key;
  queue_.return_part([&] {
    assert_all_shards_held();
    free_under_lock(freed, {by, pointer, std::nullopt, end_use(parts_.mode, by, &freed, std::nullopt)},
                    *freed.parent->shard);
  });
}

namespace {

// The most streams whose uses a live block can hold. One more place stays for the stream that frees the block.
inline constexpr std::size_t max_uses = stream_uses::max_streams - 1;

} // namespace

stream_uses free_path::recorded_uses(void const* pointer) noexcept {
  all_shards_lock const lock{parts_.shards};
  auto const* const used = parts_.shards.find_live(pointer).that;
  return used ? used->uses : stream_uses{};
}

bool free_path::record_use(stream_key const& key, void* pointer) {
  key.identity().timeline().prepare();
  late_misuse wrong;
  all_shards_lock const lock{parts_.shards};
  if (!key.identity().capturing()) frees_.run_deferred(&key);
  auto* const used = find_or_explain(parts_, key, pointer, std::nullopt, wrong);
  if (!used) {
    wrong.set_recorded();
    return false;
  }
  parts_.mode.add_stream(key.identity().timeline());
  auto& timeline = key.identity().timeline();
  if (!used->uses.find(timeline)) make_room_for_use(used->uses, key);
  auto const recorded = key.identity().has_handle() ? timeline.record_at_free(key.identity().handle()) : epoch{0};
  used->uses.add({&timeline, recorded ? recorded : key.identity().end_use(used->bytes, true)});
  return true;
}

// Makes room for a use if the block already has `max_uses`. The stream of the new use waits on the device for one of
// the old uses. The old use is then removed, since the new one covers it. If no use has an event to wait for, the host
// waits until the uses are complete.
void free_path::make_room_for_use(stream_uses& uses, stream_key const& key) {
  uses.prune();
  if (uses.size() < max_uses) return;
  for (auto const& use : uses) {
    if (!key.identity().timeline().ordered_after(*use.timeline, use.newest) &&
        !use.timeline->insert_wait(key.identity().timeline(), key.identity().handle(), use.newest)) {
      continue;
    }
    uses.remove(*use.timeline);
    return;
  }
  std::vector<stream_timeline*> open;
  for (auto const& use : uses) open.push_back(use.timeline);
  {
    all_shards_unlock const during{parts_.shards};
    wait_for_streams(open, tuning::max_host_wait);
  }
  uses.prune();
  if (uses.size() >= max_uses) throw_cuda_error(CUDA_ERROR_NOT_READY, "gpumem: record_use");
}

} // namespace gpumem::detail
