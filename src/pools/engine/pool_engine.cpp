// A pool's constructor, limit, pins, lookup of pointers, statistics and consistency check.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:pool_engine.impl;
import :pool_engine;
import :block;
import :block_info;
import :chunk;
import :error;
import :executor;
import :free_list;
import :peak_tracker;
import :pool_backend;
import :pool_counters;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :stream_timeline;
import :stream_uses;
import :sync;
import :thread_caches;
import :waiter;

namespace gpumem::detail {
namespace {

// reserve() prepares host memory for this number of blocks and streams. When the first calls did that themselves,
// 16 streams of short kernels lost 2 % of their first 2,000 steps to it.
inline constexpr std::size_t prepared_blocks = 1024, prepared_streams = 16;

void add(statistics& sum, statistics const& part) noexcept {
  for (auto const each :
       {&statistics::allocations, &statistics::frees, &statistics::failures, &statistics::upstream_allocations,
        &statistics::upstream_frees, &statistics::reuse_same_stream, &statistics::reuse_ordered,
        &statistics::reuse_completed, &statistics::reuse_waited, &statistics::reuse_after_sync}) {
    sum.*each += part.*each;
  }
}

// Returns the bytes on a free list. Clears `consistent` if a range there is not free, names another list or is out of
// order.
std::size_t checked_bytes(free_list const& one, bool& consistent) {
  std::size_t bytes = 0, found = 0;
  epoch newest = 0;
  for (auto const* each = one.oldest(); each; each = each->newer) {
    consistent = consistent && each->is_free() && each->list == &one;
    bytes += each->bytes;
    if (!one.timeline()) continue;
    consistent = consistent && each->uses.size() == 1 && each->uses.begin()->timeline == one.timeline();
    consistent = consistent && each->uses.begin()->newest >= newest;
    newest = each->uses.begin()->newest;
  }
  one.bins().visit_from(0, [&](block const& each) { found += each.bytes; });
  consistent = consistent && found == bytes;
  return bytes + one.quick().bytes();
}

} // namespace

pool_engine::pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options)
    : parts_{std::move(upstream), std::move(options), *this}, requests_{parts_, *this},
      search_{parts_.options.cross_stream, parts_.rules} {
  default_executor(); // started here, since frees and destructors must not start it
  retry_releases();
  reserve(parts_.options.initial_size);
}

std::size_t pool_engine::reserve(std::size_t bytes) {
  auto const fail = [&](failure const& why) { throw_failure({why.reason, why.code, bytes}); };
  all_shards_lock held{parts_.shards};
  auto const limit = parts_.backend.chunks().limit();
  if (bytes > (limit ? limit : PTRDIFF_MAX)) fail({outcome::too_large});
  if (bytes > parts_.backend.chunks().reserved()) {
    parts_.shards.shard_of_thread().ranges.reserve_metadata(prepared_blocks, prepared_streams);
    parts_.caches.ensure_storage(sync::thread_index());
  }
  auto const missing = parts_.backend.grow_to(bytes, parts_.shards.shard_of_thread(), held);
  if (!missing) fail(missing.error());
  if (*missing > 0) flush_beyond_threshold();
  return *missing;
}

void pool_engine::set_limit(std::size_t bytes) {
  check_limit(bytes);
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  parts_.backend.set_limit(bytes);
  update_mode();
  requests_.count_change();
  requests_.wake_ended(woken);
  requests_.wake_next(woken);
}

bool pool_engine::pin(void const* pointer, std::size_t bytes) {
  all_shards_lock held{parts_.shards};
  return parts_.backend.pin(pointer, bytes, held);
}

void pool_engine::unpin(void const* pointer, std::size_t bytes) {
  woken_waiters woken;
  all_shards_lock held{parts_.shards};
  parts_.backend.unpin(pointer, bytes, held);
  requests_.count_change();
  requests_.wake_next(woken);
}

expected<int, failure> pool_engine::export_page(void const* pointer) {
  all_shards_lock held{parts_.shards};
  return parts_.backend.export_page(pointer, held);
}

std::optional<block_info> pool_engine::find(void const* pointer) {
  all_shards_lock const held{parts_.shards};
  drain_all_remote_frees();
  auto const* const parent = parts_.backend.chunks().find_containing(pointer);
  auto const* const found = parent ? range_allocator::find_containing(*parent, pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return std::nullopt;
  if (!found->is_live()) return block_info{found->pointer(), 0, found->bytes, 0, false};
  return block_info{found->pointer(), found->requested, found->bytes, found->stream->id(), true};
}

// Adds the free bytes of a shard, the number of its free ranges, and the free bytes whose uses are not known to be
// complete. Appends the streams of those uses to `users`; a stream can occur several times.
void pool_engine::add_free_statistics(pool_shard& in, statistics& f, std::vector<stream_timeline const*>& users) {
  auto const add_range = [&](block const& free) {
    bool const over = free.uses.completed();
    f.free_in_use += over ? 0 : free.bytes;
    for (auto const& use : free.uses) {
      bool const counted = !users.empty() && users.back() == use.timeline;
      if (!use.completed() && !counted) users.push_back(use.timeline);
    }
    return over;
  };
  in.ranges.lists().visit([&](free_list const& one) {
    f.free_ranges += one.size();
    for (auto const* range = one.newest(); range; range = range->older) {
      if (add_range(*range) && one.timeline()) break; // the stream's older ranges are complete too
    }
    one.quick().visit([&](block const& spare) {
      ++f.free_ranges;
      add_range(spare);
    });
  });
  f.free += in.ranges.free_bytes();
}

// Takes the lock of one shard at a time, so that no thread waits for all of them. While requests wait it takes all
// locks as well, as all calls do then.
statistics pool_engine::read_statistics() {
  statistics f;
  std::int64_t live = 0;
  std::size_t not_free = 0;
  std::vector<stream_timeline const*> users;
  for (auto const& each : parts_.shards.all()) {
    sync::spin_lock const held{each->mutex};
    if (fast_path_) drain_remote_frees(*each);
    add(f, each->counts);
    live += each->live.bytes;
    not_free += each->reserved - each->ranges.free_bytes();
    f.coalesces += each->ranges.coalesces();
    f.coalesces_refused += each->ranges.refused_coalesces();
    f.largest_free = std::max(f.largest_free, each->ranges.largest_free());
    add_free_statistics(*each, f, users);
    f.reserved = parts_.backend.chunks().reserved() + parts_.backend.chunks().releasing();
    f.limit = parts_.backend.chunks().limit();
    f.peak_reserved = parts_.backend.chunks().peak();
  }
  std::ranges::sort(users, {}, &stream_timeline::index);
  f.in_use_streams = static_cast<std::size_t>(std::ranges::unique(users).begin() - users.begin());
  auto const cached = parts_.caches.snapshot();
  f.live = static_cast<std::size_t>(std::max(live - cached.cached_requested, std::int64_t{0}));
  f.cached = cached.cached();
  f.allocated = not_free - std::min(not_free, cached.cached());
  f.allocations += cached.allocations;
  f.reuse_same_stream += cached.allocations;
  f.reuse_thread_cache = cached.allocations;
  f.frees += cached.frees;
  f.peak_live = std::max(f.live, live_.peak());
  if (!requests_.has_waiting()) return f;
  auto const waiting = requests_.read_statistics();
  f.waiting = waiting.requests;
  f.waiting_bytes = waiting.bytes;
  f.oldest_wait_ns = static_cast<std::uint64_t>(waiting.oldest.count());
  return f;
}

pool_counters pool_engine::read_counters() {
  all_shards_lock const held{parts_.shards};
  pool_counters counters;
  for (auto const& each : parts_.shards.all()) {
    counters.quick_list_hits += each->counters.quick_list_hits;
    counters.locked_calls += each->counters.locked_calls;
    counters.all_locked_calls += each->counters.all_locked_calls;
    counters.steals += each->counters.steals;
    counters.remote_frees += each->counters.remote_frees;
    counters.chunks_migrated += each->counters.chunks_migrated;
    counters.page_evictions += each->counters.page_evictions;
    counters.page_moves += each->counters.page_moves;
    counters.flushed += each->counters.flushed;
    counters.promoted += each->counters.promoted;
  }
  counters.shards = parts_.shards.all().size();
  auto const cached = parts_.caches.snapshot();
  counters.thread_cache_hits = cached.allocations;
  counters.over_budget = cached.over_budget;
  return counters;
}

bool pool_engine::is_consistent() {
  all_shards_lock const held{parts_.shards};
  drain_all_remote_frees();
  bool consistent = false;
  parts_.caches.visit_locked([&](cache_counts const& cached) { consistent = is_consistent_with(cached); });
  return consistent;
}

bool pool_engine::is_consistent_with(cache_counts const& cached) {
  std::size_t free = 0, small = 0, larger = 0, taken = 0;
  std::int64_t live = 0;
  bool consistent = true;
  parts_.backend.chunks().visit([&](chunk const& parent) {
    auto end = parent.base;
    std::size_t not_free = 0;
    block const* lower = nullptr;
    range_allocator::visit(parent, [&](block const& each) {
      // The blocks of a chunk adjoin without a gap.
      consistent = consistent && each.base == end && each.lower == lower && each.bytes > 0 && each.bytes % granule == 0;
      consistent = consistent && each.parent == &parent && each.uses.size() <= stream_uses::max_streams;
      end = each.end();
      lower = &each;
      if (each.state() == block_state::hole) return;
      bool const unused = each.is_free() || each.state() == block_state::quick_listed;
      (unused ? free : taken) += each.bytes;
      not_free += !unused;
      if (!each.is_free()) consistent = consistent && parent.shard->find_live(each.pointer()) == &each;
      if (each.state() == block_state::cached) (each.bytes <= size_class::largest_small ? small : larger) += each.bytes;
      auto const state = each.state(); // read once: a remote free may change it meanwhile, and counts as live
      bool const counted_live =
          state == block_state::allocated || state == block_state::evicted || state == block_state::remote_freed;
      if (counted_live) live += static_cast<std::int64_t>(each.requested);
    });
    consistent = consistent && end == parent.end() && lower == parent.last && not_free == parent.live_blocks;
  });
  std::size_t in_lists = 0, reserved = 0;
  std::int64_t counted = -cached.cached_requested;
  for (auto const& each : parts_.shards.all()) {
    each->ranges.lists().visit([&](free_list& one) { in_lists += checked_bytes(one, consistent); });
    reserved += each->reserved;
    counted += each->live.bytes;
  }
  return consistent && free == in_lists && free == parts_.free_bytes() &&
         taken + free == parts_.backend.chunks().reserved() && reserved == parts_.backend.chunks().reserved() &&
         small == cached.usage[size_class::small].in_use && small + larger == cached.cached() &&
         parts_.caches.is_balanced(cached) && live == counted;
}

} // namespace gpumem::detail
