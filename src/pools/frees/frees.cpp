// Frees of blocks into their shards, and frees inside a capture.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:frees.impl;
import :frees;
import :block;
import :chunk_list;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :thread_caches;
import :virtual_pages;

namespace gpumem::detail {

void shard_frees::drain(pool_shard& shard) noexcept {
  for (auto* at = shard.remote_frees.take_all(); at;) {
    auto& freed = *at;
    at = at->next;
    parts_.shards.count_live(shard, -static_cast<std::int64_t>(freed.requested), 0, parts_.chunks.reserved());
    ++shard.counts.frees;
    ++shard.counters.remote_frees;
    --shard.live_blocks;
    free_block(freed);
  }
}

// Returns with which free neighbours a freed block coalesces. The block can join the unused range from which it was
// split. Other streams can then use that range only after the work of the block's stream. So blocks of a stream with
// long work (is_behind) do not join it.
[[gnu::always_inline]] inline range_allocator::coalescing
shard_frees::coalescing_of(block const& returned) const noexcept {
  // If all blocks have one size, or the pool has a limit, freed blocks do not join unused ranges. Unused ranges then
  // stay usable by all streams.
  auto const& sizes = parts_.options;
  if (sizes.smallest_block != 0 && sizes.smallest_block == sizes.largest_block)
    return range_allocator::coalescing::same_streams;
  if (!parts_.mode.multi_stream()) return range_allocator::coalescing::any;
  if (parts_.chunks.limit() != 0) return range_allocator::coalescing::same_streams;
  bool const over = returned.uses.size() == 1 && !returned.uses.begin()->timeline->is_behind();
  return over ? range_allocator::coalescing::unused : range_allocator::coalescing::same_streams;
}

void shard_frees::free_block(block& returned) noexcept {
  auto& shard = *returned.parent->shard;
  auto& in = shard.ranges;
  if (goes_to_quick_list(returned) && in.push_quick(returned)) return;
  // A part of a loan stays apart until its uses are complete: otherwise the pages of all free neighbours would have to
  // wait for the newest of them.
  auto const how = shard.lends ? range_allocator::coalescing::complete : coalescing_of(returned);
  auto const& range = in.free(returned, how);
  if (parts_.mode.fast_path()) [[likely]]
    return;
  [&] {
    assert_all_shards_held(); // without the fast path (one lock per call) each call holds all locks
    check_thresholds(range);
  }();
}

void shard_frees::free_cached_block(block& cached) noexcept {
  auto& shard = *cached.parent->shard;
  parts_.shards.count_live(shard, -static_cast<std::int64_t>(cached.requested), 0, parts_.chunks.reserved());
  --shard.live_blocks;
  ++shard.counters.flushed;
  free_block(cached);
}

void shard_frees::free_evicted_block(block& evicted) noexcept {
  free_cached_block(evicted);
  if (flushing_ > 0) [[unlikely]]
    evicted_freed_.notify_all();
}

bool shard_frees::flush_thread_caches() noexcept {
  auto* flushed = parts_.caches.flush();
  drain_all_remote_frees();
  bool any = flushed;
  while (flushed) {
    auto& kept = *flushed;
    flushed = flushed->next;
    parts_.mode.add_stream(*kept.uses.begin()->timeline);
    free_cached_block(kept);
  }
  for (auto const& each : parts_.shards.all()) any |= each->ranges.flush_quick_lists();
  return any;
}

void shard_frees::flush_beyond_threshold() noexcept {
  if (!parts_.caches.enabled()) flush_thread_caches();
}

void shard_frees::flush_for_request() {
  bool const cached_till_now = parts_.caches.enabled();
  parts_.mode.set_under_pressure(true);
  flush_thread_caches();
  if (!cached_till_now) return;
  auto const any_evicted = [&] {
    assert_all_shards_held();
    bool any = false;
    parts_.chunks.visit([&](chunk const& parent) {
      parent.visit([&](block const& each) { any |= each.state() == block_state::evicted; });
    });
    return any;
  };
  ++flushing_;
  while (any_evicted()) parts_.shards.wait(evicted_freed_);
  --flushing_;
}

// Ends memory pressure (the state after a request found no memory) when a sixteenth of the memory is free. If the range
// can go back to the upstream, and more than the release threshold is reserved, makes the library thread release
// memory.
void shard_frees::check_thresholds(block const& range) noexcept {
  parts_.requests.count_change();
  auto const reserved = parts_.chunks.reserved();
  if (parts_.mode.under_pressure() && !parts_.requests.has_waiting()) {
    auto const capacity = parts_.chunks.limit() ? parts_.chunks.limit() : reserved;
    auto const allocated = reserved - parts_.shards.free_bytes();
    parts_.mode.set_under_pressure(capacity - std::min(capacity, allocated) < capacity / 16);
  }
  bool const whole = range.parent->addresses ? range.bytes >= smallest_page : range.parent->live_blocks == 0;
  if (!whole || !parts_.mode.too_much_reserved()) return;
  parts_.passes.restart_idle();
  parts_.passes.schedule();
}

// The capturing stream comes after the work of the stream for which the block was allocated, but may be destroyed
// without an event. So if that other stream lives, its work becomes a use of its own.
void shard_frees::defer(block& returned, stream_key const& key) noexcept {
  returned.set_state(block_state::deferred);
  if (returned.stream == &key.identity().timeline()) {
    returned.stream->owe_event();
  } else if (returned.stream->owns_handle()) {
    returned.uses.add({returned.stream, returned.stream->current_epoch()}); // a block has at most three recorded uses
  }
  returned.stream = &key.identity().timeline();
  returned.stream->add_keeper();
  returned.next = std::exchange(deferred_, &returned);
  parts_.mode.set_deferred_frees(true);
  parts_.passes.notify();
}

// A block with four open uses stays deferred until one of them is complete.
void shard_frees::run_all_deferred(stream_key const* now) noexcept {
  for (auto* block = std::exchange(deferred_, nullptr); block;) {
    auto& returned = *block;
    block = returned.next;
    auto& timeline = *returned.stream;
    bool const given = now && &now->identity().timeline() == &timeline && now->identity().has_handle();
    auto const ended = !timeline.is_mortal() ? timeline.current_epoch()
                       : given               ? now->identity().end_use(returned.bytes, true)
                                             : timeline.end_use_in_capture();
    parts_.rules.prune(returned.uses);
    if (returned.uses.add({&timeline, ended})) {
      timeline.remove_keeper();
      free_block(returned);
    } else {
      returned.next = std::exchange(deferred_, &returned);
    }
  }
  parts_.mode.set_deferred_frees(any_deferred());
  parts_.passes.notify();
}

} // namespace gpumem::detail
