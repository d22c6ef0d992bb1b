// Frees of blocks, and the report of misuse. Nothing here allocates host memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
module gpumem:pool_free.impl;
import :block;
import :misuse;
import :pool_backend;
import :pool_engine;
import :pool_options;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :stream_uses;
import :sync;
import :thread_caches;
import :virtual_pages;

namespace gpumem::detail {

// First frees the block that the thread cache has evicted: the free of the caller's block may be the pool's last.
free_result pool_engine::free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                                   cached_free const& cached) noexcept {
  auto const evicted = cached.result.evicted ? free_evicted_block(*cached.result.evicted) : free_result::done;
  if (cached.result.inserted) return evicted;
  free_call const call{key, pointer, bytes, cached.use};
  if (cached.freed.that) return free_uncached(call, cached.freed);
  // A block of another thread's shard goes back to that shard. If this thread cached it, its later frees would search
  // all shards. Near the limit it is cached nevertheless: the thread may find no other block, and a steal locks all
  // shards.
  auto const seen = parts_.shards.find_live(pointer);
  if (!seen.that || !near_limit_.load(std::memory_order_relaxed) || !may_cache(*seen.that, key, bytes)) {
    return free_uncached(call, seen);
  }
  auto const result = parts_.caches.insert(*seen.that, cached.use, sync::thread_index());
  auto const ended = result.evicted ? free_evicted_block(*result.evicted) : free_result::done;
  return result.inserted ? ended : free_uncached(call, seen);
}

free_result pool_engine::free_uncached(free_call const& call, shard_list::lookup const& seen) noexcept {
  return free_to_shard(call, seen) ? free_result::done : free_with_all_locks(call);
}

// Frees under the lock of the block's shard alone. Returns false, and frees nothing, if the call needs the locks of all
// shards or is a misuse.
[[gnu::always_inline]] bool pool_engine::free_to_shard(free_call const& call, shard_list::lookup const& seen) noexcept {
  if (!seen.that || call.key.capturing() || parts_.caches.budget_exhausted()) [[unlikely]]
    return false;
  auto& shard = *seen.shard;
  sync::spin_lock held{shard.mutex, std::try_to_lock};
  if (!held) {
    if (push_remote_free(call, seen)) return true;
    held = parts_.shards.lock(shard);
  }
  auto& freed = *seen.that;
  if (!goes_to_quick_list(freed)) freed.prefetch_neighbours(); // coalescing reads them at the end of the call
  bool const right =
      may_use_one_lock(*call.use.timeline) && freed.pointer() == call.pointer && freed.is_live() && call.fits(freed);
  if (right) [[likely]]
    finish_free(freed, call, shard);
  return right;
}

// Leaves the free to the next holder of the shard's lock, since another thread holds it now. Returns false if the block
// must not be cached, or if frees record no events. Compare the lists of thread-delayed frees of mimalloc (Leijen,
// Zorn, de Moura 2019).
bool pool_engine::push_remote_free(free_call const& call, shard_list::lookup const& seen) noexcept {
  auto const threshold = parts_.caches.event_threshold_bytes();
  if (!seen.that || !may_cache(*seen.that, call.key, call.bytes) || threshold == SIZE_MAX) return false;
  auto& timeline = *call.use.timeline;
  bool const many = timeline.count_unrecorded(1, seen.that->bytes, threshold);
  auto const use = many || timeline.event_requested() ? record_event(call) : call.use;
  return parts_.caches.push_remote_free(*seen.that, use, seen.shard->remote_frees);
}

// Completes the remote frees of a shard. The caller holds its lock, with `fast_path_` set, or the locks of all shards.
void pool_engine::drain_remote_frees_slow(pool_shard& in) noexcept {
  for (auto* at = in.remote_frees.exchange(nullptr, std::memory_order_acquire); at;) {
    auto& freed = *at;
    at = at->next;
    count_live(in, -static_cast<std::int64_t>(freed.requested), 0);
    ++in.counts.frees;
    ++in.counters.remote_frees;
    --in.live_blocks;
    free_block(freed);
  }
}

free_result pool_engine::free_with_all_locks(free_call const& call) noexcept {
  auto const& key = call.key;
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  drain_all_remote_frees();
  if (deferred_ && !key.capturing()) run_deferred_frees(&key);
  auto* const freed = checked_block(key, call.pointer, call.bytes);
  if (!freed) return free_result::refused;
  auto& shard = *freed->parent->shard;
  shard.counters.all_locked_calls += !parts_.shards.single();
  add_stream(key.timeline());
  finish_free(*freed, call, shard);
  if (parts_.caches.budget_exhausted()) flush_thread_caches();
  requests_.wake_next(woken);
  if (requests_.may_stall()) schedule_pass(); // now work that waits may hold all memory
  return is_unused() ? free_result::last : free_result::done;
}

// Frees a block that a thread cache has evicted. Returns `last` as the free of a caller's block does.
free_result pool_engine::free_evicted_block(block& cached) noexcept {
  auto& shard = *cached.parent->shard;
  {
    auto const held = parts_.shards.lock(shard);
    if (may_use_one_lock(*cached.uses.begin()->timeline)) [[likely]] {
      ++shard.counters.locked_calls;
      free_cached_block(cached);
      if (eviction_waiters_ > 0) [[unlikely]]
        evictions_done_.notify_all();
      return free_result::done;
    }
  }
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  ++shard.counters.locked_calls;
  shard.counters.all_locked_calls += !parts_.shards.single();
  if (deferred_) run_deferred_frees();
  add_stream(*cached.uses.begin()->timeline);
  free_cached_block(cached);
  if (eviction_waiters_ > 0) evictions_done_.notify_all();
  requests_.wake_next(woken);
  return is_unused() ? free_result::last : free_result::done;
}

block* pool_engine::checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto* const found = parts_.shards.find_live(pointer).that;
  if (!found || !found->is_live()) return explain_misuse(key, pointer, bytes);
  if (bytes && *bytes != found->requested) return explain_misuse(key, pointer, bytes);
  return found;
}

block* pool_engine::explain_misuse(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) -> block* {
    report_misuse({what, pointer, bytes.value_or(0), expected, key.id(), parts_.options.name.c_str()});
    return nullptr;
  };
  auto const* const parent = parts_.backend.chunks().find_containing(pointer);
  auto const* const found = parent ? range_allocator::find_containing(*parent, pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return refuse(misuse::kind::foreign_pointer, 0);
  std::size_t const requested = found->requested;
  if (found->state() == block_state::deferred) return refuse(misuse::kind::double_free, requested);
  if (!found->is_live()) return refuse(misuse::kind::double_free, 0);
  return refuse(found->pointer() != pointer ? misuse::kind::foreign_pointer : misuse::kind::wrong_size, requested);
}

[[gnu::always_inline]] void pool_engine::finish_free(block& freed, free_call const& call, pool_shard& in) noexcept {
  auto const& key = call.key;
  count_live(in, -static_cast<std::int64_t>(freed.requested), 0);
  ++in.counts.frees;
  ++in.counters.locked_calls;
  --in.live_blocks;
  if (key.capturing()) [[unlikely]]
    return defer_free(freed, key);
  if (!freed.uses.empty()) [[unlikely]]
    parts_.rules.prune(freed.uses);
  // A free by the host means that all work on the block is complete, except uses declared by record_use().
  if (!key.is_host()) [[likely]]
    freed.uses.add(record_event_if_due(call, freed.bytes, in));
  free_block(freed);
}

// Returns the use that ends on the stream. Records an event if another stream or the host may soon want the memory, and
// only on a stream that the caller has passed or that is gpumem's. The stream's free list in the shard counts first, so
// that the threads of one stream rarely write the counter of its timeline.
[[gnu::always_inline]] stream_use pool_engine::record_event_if_due(free_call const& call, std::size_t bytes,
                                                                   pool_shard& in) noexcept {
  auto& timeline = *call.use.timeline;
  bool const many = records_events() && passes_event_threshold(timeline, bytes, in);
  return many || timeline.event_requested() || under_pressure_ ? record_event(call) : call.use;
}

bool pool_engine::passes_event_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& in) noexcept {
  auto const threshold = event_threshold_bytes();
  auto* const own = in.ranges.lists().find(timeline);
  if (!own) [[unlikely]]
    return timeline.count_unrecorded(1, bytes, threshold);
  if (!own->count_free(bytes, threshold)) [[likely]]
    return false;
  auto const frees = std::exchange(own->unrecorded_frees, 0);
  return timeline.count_unrecorded(frees, std::exchange(own->unrecorded_bytes, 0), threshold);
}

stream_use pool_engine::record_event(free_call const& call) noexcept {
  auto& timeline = *call.use.timeline;
  if (call.key.has_handle() && parts_.options.cross_stream != reuse_policy::ordered && !lost()) {
    if (auto const recorded = timeline.record_at_free(call.key.handle())) return {&timeline, recorded};
  }
  return call.use;
}

// A freed block coalesces with the unused range from which it was split. This keeps the range from other streams until
// the stream's work is complete, so it is not done while the stream is behind.
[[gnu::always_inline]] range_allocator::coalescing pool_engine::coalescing_of(block const& freed) const noexcept {
  if (!multi_stream_) return range_allocator::coalescing::any;
  if (parts_.backend.chunks().limit() != 0)
    return range_allocator::coalescing::same_streams; // there, unused ranges stay free for all streams
  bool const over = freed.uses.size() == 1 && !freed.uses.begin()->timeline->is_behind();
  return over ? range_allocator::coalescing::unused : range_allocator::coalescing::same_streams;
}

// Puts a block on its quick list, or on a free list. A later use must be ordered after the block's uses.
[[gnu::always_inline]] void pool_engine::free_block(block& freed) noexcept {
  auto& in = freed.parent->shard->ranges;
  if (goes_to_quick_list(freed) && in.push_quick(freed)) return;
  check_thresholds(in.free(freed, coalescing_of(freed)));
}

// Frees a block that was in a thread cache. The cache has already counted its free.
void pool_engine::free_cached_block(block& cached) noexcept {
  auto& shard = *cached.parent->shard;
  count_live(shard, -static_cast<std::int64_t>(cached.requested), 0);
  --shard.live_blocks;
  ++shard.counters.flushed;
  free_block(cached);
}

void pool_engine::check_thresholds_slow(block const& range) noexcept {
  requests_.count_change();
  if (under_pressure_ && !requests_.has_waiting()) {
    auto const capacity =
        parts_.backend.chunks().limit() ? parts_.backend.chunks().limit() : parts_.backend.chunks().reserved();
    auto const allocated = parts_.backend.chunks().reserved() - parts_.free_bytes();
    set_under_pressure(capacity - std::min(capacity, allocated) < capacity / 16);
  }
  bool const whole = parts_.backend.paged() ? range.bytes >= smallest_page : range.parent->live_blocks == 0;
  if (!whole || !too_much_reserved()) return;
  idle_passes_ = 0;
  schedule_pass();
}

// Defers a free inside a graph capture: a capturing stream must not be touched, and the captured work has not run. The
// next call outside a capture completes the free.
void pool_engine::defer_free(block& freed, stream_key const& key) noexcept {
  freed.set_state(block_state::deferred);
  freed.stream = &key.timeline();
  freed.stream->retain();
  freed.next = std::exchange(deferred_, &freed);
  update_mode();
  requests_.notify();
}

// `now`: the current call's stream; an event can be recorded on it if the call was given its handle. May be null.
void pool_engine::run_deferred_frees(stream_key const* now) noexcept {
  if (!deferred_) return;
  while (auto* const freed = deferred_) {
    deferred_ = freed->next;
    auto& timeline = *freed->stream;
    bool const given = now && &now->timeline() == &timeline && now->has_handle();
    auto const ended = !timeline.is_mortal() ? timeline.current_epoch()
                       : given               ? now->end_use(freed->bytes, true)
                                             : timeline.end_use(std::nullopt, freed->bytes, false);
    parts_.rules.prune(freed->uses);
    freed->uses.add({&timeline, ended});
    timeline.release();
    free_block(*freed);
  }
  update_mode();
  requests_.notify();
}

} // namespace gpumem::detail
