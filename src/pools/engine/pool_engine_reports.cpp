// Reads the counts of a pool, looks blocks up by their addresses, and checks the pool's lists.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>
module gpumem:pool_engine_reports.impl;
import :pool_engine;
import :block;
import :chunk_list;
import :free_lists;
import :frees;
import :memory_walk;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :pool_shard;
import :range_allocator;
import :request_queue;
import :shard_list;
import :shard_roles;
import :stream_timeline;
import :thread_caches;
import :waiter;

namespace gpumem::detail {
namespace {

// The members of `statistics` and `pool_counters` that are sums over the shards.
inline constexpr std::array<std::uint64_t statistics::*, 10> added{
    &statistics::allocations,          &statistics::frees,           &statistics::failures,
    &statistics::upstream_allocations, &statistics::upstream_frees,  &statistics::reuse_same_stream,
    &statistics::reuse_ordered,        &statistics::reuse_completed, &statistics::reuse_waited,
    &statistics::reuse_after_sync};
inline constexpr std::array<std::uint64_t pool_counters::*, 12> counts_of_shards{
    &pool_counters::quick_list_hits, &pool_counters::locked_calls, &pool_counters::all_locked_calls,
    &pool_counters::steals,          &pool_counters::remote_frees, &pool_counters::chunks_migrated,
    &pool_counters::page_unmaps,     &pool_counters::page_moves,   &pool_counters::flushed,
    &pool_counters::promoted,        &pool_counters::joins,        &pool_counters::idle_visits};

// Adds to `sum` the free bytes of a shard, the number of its free ranges, and the free bytes that streams may still
// use. Appends these streams to `users`; a stream can occur several times.
GPUMEM_REQUIRES(one_shard)
GPUMEM_REQUIRES_SHARED(all_shards)
void add_free_statistics(pool_shard& shard, statistics& sum, std::vector<stream_timeline const*>& users) {
  auto const add_range = [&](block const& free) {
    bool const over = free.uses.completed();
    sum.free_in_use += over ? 0 : free.bytes;
    for (auto const& use : free.uses) {
      bool const counted = !users.empty() && users.back() == use.timeline;
      if (!use.completed() && !counted) users.push_back(use.timeline);
    }
    return over;
  };
  shard.ranges.lists().visit([&](free_list const& one) {
    sum.free_ranges += one.size();
    for (auto const* range = one.newest(); range; range = range->older) {
      if (add_range(*range) && one.timeline()) break; // in the list of one stream, older ranges are complete too
    }
    one.quick().visit([&](block const& spare) {
      ++sum.free_ranges;
      add_range(spare);
    });
  });
  sum.free += shard.ranges.free_bytes();
}

// Sums over shards. `agree`: the shards have as many bytes as the pool.
struct shard_sums {
  statistics all;
  std::int64_t live = 0; // bytes, including those of blocks in thread caches
  std::size_t reserved = 0;
  bool agree = false;
  std::vector<stream_timeline const*> users; // of free memory; a stream can occur several times
};

GPUMEM_REQUIRES(one_shard)
GPUMEM_REQUIRES_SHARED(all_shards)
void add_shard(pool_parts& parts, shard_frees& frees, pool_shard& shard, shard_sums& sums) {
  auto& sum = sums.all;
  if (parts.mode.fast_path()) frees.drain_remote_frees(shard);
  for (auto const count : added) sum.*count += shard.counts.*count;
  sums.live += shard.live.bytes;
  sum.shards += !shard.spare;
  sums.reserved += shard.reserved;
  auto const allocated = shard.reserved - shard.ranges.free_bytes();
  sum.allocated += allocated;
  sum.lent += shard.lends ? allocated : 0;
  sum.coalesces += shard.ranges.free_ranges().coalesces();
  sum.coalesces_refused += shard.ranges.free_ranges().refused_coalesces();
  if (!shard.lends) sum.largest_free = std::max(sum.largest_free, shard.ranges.lists().largest());
  add_free_statistics(shard, sum, sums.users);
  sum.reserved = parts.chunks.reserved() + parts.chunks.releasing();
  sum.limit = parts.chunks.limit();
  sum.largest_block = parts.options.largest_block;
  sum.peak_reserved = parts.chunks.peak();
  sum.reserved_in_all = parts.chunks.reserved_in_all();
  sums.agree = sums.reserved == parts.chunks.reserved();
}

// Takes the lock of one shard at a time: the locks of all shards would stop all threads. If memory has come, gone or
// moved meanwhile, a part of it may be counted twice or not at all. The shards' bytes are then not those of the pool,
// and all shards are read once more, at one time.
shard_sums read_shards(pool_parts& parts, shard_frees& frees) {
  shard_sums sums;
  for (auto const& each : parts.shards.all()) {
    each->mutex.lock(); // unlike shard_lock, this does not count contention
    shard_lock const lock{*each, std::adopt_lock};
    add_shard(parts, frees, *each, sums);
  }
  if (sums.agree) return sums;
  sums = {};
  all_shards_lock const lock{parts.shards};
  for (auto const& each : parts.shards.all()) add_shard(parts, frees, *each, sums);
  return sums;
}

} // namespace

statistics pool_engine::read_statistics() {
  auto sums = read_shards(parts_, frees_);
  auto& sum = sums.all;
  std::ranges::sort(sums.users, {}, &stream_timeline::index);
  sum.in_use_streams = static_cast<std::size_t>(std::ranges::unique(sums.users).begin() - sums.users.begin());
  auto const cached = parts_.caches.snapshot();
  sum.live = static_cast<std::size_t>(std::max(sums.live - cached.cached_requested, std::int64_t{0}));
  sum.cached = cached.cached();
  sum.allocated -= std::min(sum.allocated, cached.cached());
  sum.allocations += cached.allocations;
  sum.reuse_same_stream += cached.allocations;
  sum.reuse_thread_cache = cached.allocations;
  sum.frees += cached.frees;
  sum.peak_live = std::max(sum.live, parts_.shards.peak_live());
  if (parts_.requests.has_waiting()) {
    auto const waiting = queue_.read_statistics();
    sum.waiting = waiting.requests;
    sum.waiting_bytes = waiting.bytes;
    sum.oldest_wait_ns = static_cast<std::uint64_t>(waiting.oldest.count());
  }
  return sum;
}

pool_counters pool_engine::read_counters() {
  all_shards_lock const lock{parts_.shards};
  pool_counters counters;
  for (auto const& each : parts_.shards.all()) {
    for (auto const count : counts_of_shards) counters.*count += each->counters.*count;
  }
  auto const cached = parts_.caches.snapshot();
  counters.thread_cache_hits = cached.allocations;
  counters.refused_frees = cached.refused;
  return counters;
}

std::optional<block_info> pool_engine::find(void const* pointer) {
  all_shards_lock const lock{parts_.shards};
  frees_.drain_all_remote_frees();
  auto const* const parent = parts_.chunks.find_containing(pointer);
  auto const* const found = parent ? parent->find_containing(pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return std::nullopt;
  if (!found->is_live()) return block_info{found->pointer(), 0, found->bytes, 0, false};
  return block_info{found->pointer(), found->requested, found->bytes, found->stream->id(), true};
}

live_blocks pool_engine::find_live() {
  all_shards_lock const lock{parts_.shards};
  frees_.drain_all_remote_frees();
  live_blocks found;
  parts_.chunks.visit([&](chunk const& parent) {
    parent.visit([&](block const& one) {
      if (one.is_live()) found.add({one.pointer(), one.requested, one.bytes, one.stream->id(), true});
    });
  });
  return found;
}

std::vector<memory_range> pool_engine::memory_map() {
  std::vector<copied_block> blocks;
  for (memory_walk walk{parts_, frees_}; walk.copy_next(blocks);) {}
  std::vector<memory_range> map;
  map.reserve(blocks.size());
  std::size_t first = 0; // of the region
  auto const end = [&] {
    end_region(std::span{map}.subspan(first));
    first = map.size();
  };
  for (auto const& each : blocks) {
    if (each.begins_region) end();
    bool const live = each.state == memory_state::live;
    map.push_back({each.base, each.bytes, live ? each.requested : 0, live ? each.stream : 0, live});
  }
  end();
  return map;
}

namespace {

// Returns the bytes on a free list. Sets `consistent` to false if a range on it is not free, belongs to another list or
// is out of order.
std::size_t checked_bytes(free_list const& list, bool& consistent) {
  std::size_t bytes = 0, found = 0;
  epoch newest = 0;
  for (auto const* each = list.oldest(); each; each = each->newer) {
    consistent = consistent && each->is_free() && each->list == &list;
    bytes += each->bytes;
    if (!list.timeline()) continue;
    consistent = consistent && each->uses.size() == 1 && each->uses.begin()->timeline == list.timeline();
    consistent = consistent && each->uses.begin()->newest >= newest;
    newest = each->uses.begin()->newest;
  }
  list.bins().visit_from(0, [&](block const& each) { found += each.bytes; });
  consistent = consistent && found == bytes;
  return bytes + list.quick().bytes();
}

GPUMEM_REQUIRES(one_shard, all_shards) bool is_consistent_with(pool_parts const& parts, cache_counts const& cached) {
  std::size_t free = 0, small = 0, larger = 0, taken = 0;
  std::int64_t live = 0;
  bool consistent = true;
  parts.chunks.visit([&](chunk const& parent) {
    auto end = parent.base;
    std::size_t not_free = 0;
    block const* lower = nullptr;
    bool const has_tree = parent.root;
    consistent = consistent && has_tree == parent.shard->lends;
    parent.visit([&](block const& block) {
      // The blocks of a chunk lie side by side without gaps.
      consistent =
          consistent && block.base == end && block.lower == lower && block.bytes > 0 && block.bytes % granule == 0;
      consistent = consistent && block.parent == &parent && block.uses.size() <= stream_uses::max_streams;
      if (has_tree) consistent = consistent && parent.find_containing(block.pointer()) == &block;
      end = block.end();
      lower = &block;
      if (block.state() == block_state::hole) return;
      bool const unused = block.is_free() || block.state() == block_state::quick_listed;
      (unused ? free : taken) += block.bytes;
      not_free += !unused;
      if (!block.is_free()) consistent = consistent && parent.shard->find_live(block.pointer()) == &block;
      if (block.state() == block_state::cached)
        (block.bytes <= size_class::largest_small ? small : larger) += block.bytes;
      auto const state = block.state(); // read once: a free by another thread may change it meanwhile
      bool const counted_live = is_live(state) || state == block_state::evicted || state == block_state::remote_freed;
      if (counted_live) live += static_cast<std::int64_t>(block.requested);
    });
    consistent = consistent && end == parent.end() && lower == parent.last && not_free == parent.live_blocks;
  });
  std::size_t in_lists = 0, reserved = 0;
  std::int64_t counted = -cached.cached_requested;
  for (auto const& each : parts.shards.all()) {
    each->ranges.lists().visit([&](free_list& one) { in_lists += checked_bytes(one, consistent); });
    reserved += each->reserved;
    counted += each->live.bytes;
  }
  return consistent && free == in_lists && free == parts.shards.free_bytes() &&
         taken + free == parts.chunks.reserved() && reserved == parts.chunks.reserved() &&
         small == cached.usage[size_class::small].in_use && small + larger == cached.cached() &&
         parts.caches.is_balanced(cached) && live == counted;
}

} // namespace

bool pool_engine::is_consistent() {
  all_shards_lock const lock{parts_.shards};
  frees_.drain_all_remote_frees();
  bool consistent = false;
  parts_.caches.visit_locked([&](cache_counts const& cached) {
    assert_all_shards_held();
    consistent = is_consistent_with(parts_, cached);
  });
  return consistent;
}

} // namespace gpumem::detail
