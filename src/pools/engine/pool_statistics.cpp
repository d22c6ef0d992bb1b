// Reads the counts of thread caches and of shards, and describes blocks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>
module gpumem:pool_statistics.impl;
import :pool_statistics;
import :block;
import :block_info;
import :chunk_list;
import :error;
import :free_lists;
import :frees;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :request_queue;
import :shard_list;
import :shard_roles;
import :stream_timeline;
import :sync;
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
inline constexpr std::array<std::uint64_t pool_counters::*, 11> counts_of_shards{
    &pool_counters::quick_list_hits, &pool_counters::locked_calls, &pool_counters::all_locked_calls,
    &pool_counters::steals,          &pool_counters::remote_frees, &pool_counters::chunks_migrated,
    &pool_counters::page_evictions,  &pool_counters::page_moves,   &pool_counters::flushed,
    &pool_counters::promoted,        &pool_counters::joins};

// Adds to `sum` the free bytes of a shard, the number of its free ranges, and the free bytes that streams may still
// use. Appends these streams to `users`; a stream can occur several times.
[[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
add_free_statistics(pool_shard& in, statistics& sum, std::vector<stream_timeline const*>& users) {
  auto const add_range = [&](block const& free) {
    bool const over = free.uses.completed();
    sum.free_in_use += over ? 0 : free.bytes;
    for (auto const& use : free.uses) {
      bool const counted = !users.empty() && users.back() == use.timeline;
      if (!use.completed() && !counted) users.push_back(use.timeline);
    }
    return over;
  };
  in.ranges.lists().visit([&](free_list const& one) {
    sum.free_ranges += one.size();
    for (auto const* range = one.newest(); range; range = range->older) {
      if (add_range(*range) && one.timeline()) break; // in the list of one stream, older ranges are complete too
    }
    one.quick().visit([&](block const& spare) {
      ++sum.free_ranges;
      add_range(spare);
    });
  });
  sum.free += in.ranges.free_bytes();
}

} // namespace

statistics pool_statistics::read() {
  auto sums = read_shards();
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
  sum.peak_live = std::max(sum.live, parts_.peak.peak());
  if (parts_.requests.has_waiting()) add_waiting(sum);
  return sum;
}

// Takes the lock of one shard at a time: the locks of all shards would stop all threads. If memory has come, gone or
// moved meanwhile, a part of it may be counted twice or not at all. The shards' bytes are then not those of the pool,
// and all shards are read once more, at one time.
pool_statistics::shard_sums pool_statistics::read_shards() {
  shard_sums sums;
  for (auto const& each : parts_.shards.all()) {
    each->mutex.lock(); // unlike shard_lock, this does not count contention
    shard_lock const held{*each, std::adopt_lock};
    add_shard(*each, sums);
  }
  if (sums.agree) return sums;
  sums = {};
  all_shards_lock const held{parts_.shards};
  for (auto const& each : parts_.shards.all()) add_shard(*each, sums);
  return sums;
}

void pool_statistics::add_shard(pool_shard& one, shard_sums& sums) {
  auto& sum = sums.all;
  if (parts_.mode.fast_path()) frees_.drain_remote_frees(one);
  for (auto const count : added) sum.*count += one.counts.*count;
  sums.live += one.live.bytes;
  sum.shards += !one.spare;
  sums.reserved += one.reserved;
  auto const allocated = one.reserved - one.ranges.free_bytes();
  sum.allocated += allocated;
  sum.lent += one.lends ? allocated : 0;
  sum.coalesces += one.ranges.free_ranges().coalesces();
  sum.coalesces_refused += one.ranges.free_ranges().refused_coalesces();
  if (!one.lends) sum.largest_free = std::max(sum.largest_free, one.ranges.lists().largest());
  add_free_statistics(one, sum, sums.users);
  sum.reserved = parts_.chunks.reserved() + parts_.chunks.releasing();
  sum.limit = parts_.chunks.limit();
  sum.largest_block = parts_.options.largest_block;
  sum.peak_reserved = parts_.chunks.peak();
  sum.reserved_in_all = parts_.chunks.reserved_in_all();
  sums.agree = sums.reserved == parts_.chunks.reserved();
}

// Takes the locks of all shards, as every call does while requests wait.
void pool_statistics::add_waiting(statistics& sum) {
  auto const waiting = queue_.read_statistics();
  sum.waiting = waiting.requests;
  sum.waiting_bytes = waiting.bytes;
  sum.oldest_wait_ns = static_cast<std::uint64_t>(waiting.oldest.count());
}

pool_counters pool_statistics::read_counters() {
  all_shards_lock const held{parts_.shards};
  pool_counters counters;
  for (auto const& each : parts_.shards.all()) {
    for (auto const count : counts_of_shards) counters.*count += each->counters.*count;
  }
  auto const cached = parts_.caches.snapshot();
  counters.thread_cache_hits = cached.allocations;
  counters.over_budget = cached.over_budget;
  return counters;
}

std::optional<block_info> pool_statistics::find(void const* pointer) {
  all_shards_lock const held{parts_.shards};
  frees_.drain_all_remote_frees();
  auto const* const parent = parts_.chunks.find_containing(pointer);
  auto const* const found = parent ? parent->find_containing(pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return std::nullopt;
  if (!found->is_live()) return block_info{found->pointer(), 0, found->bytes, 0, false};
  return block_info{found->pointer(), found->requested, found->bytes, found->stream->id(), true};
}

live_blocks pool_statistics::find_live() {
  all_shards_lock const held{parts_.shards};
  frees_.drain_all_remote_frees();
  live_blocks found;
  parts_.chunks.visit([&](chunk const& parent) {
    parent.visit([&](block const& one) {
      if (one.is_live()) found.add({one.pointer(), one.requested, one.bytes, one.stream->id(), true});
    });
  });
  return found;
}

// Returns all ranges, and for each the region of mapped memory in which it lies. A hole, which has no mapped pages,
// ends a region.
std::vector<memory_range> pool_statistics::memory_map() {
  all_shards_lock const held{parts_.shards};
  frees_.drain_all_remote_frees();
  std::vector<memory_range> map;
  parts_.chunks.visit([&](chunk const& parent) {
    auto first = map.size();
    auto const end = [&] {
      end_region(std::span{map}.subspan(first));
      first = map.size();
    };
    parent.visit([&](block const& one) {
      if (one.state() == block_state::hole) return end();
      map.push_back(range_of(one));
    });
    end();
  });
  return map;
}

} // namespace gpumem::detail
