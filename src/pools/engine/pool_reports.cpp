// Reads the counts of a pool, describes its blocks, writes reports, and checks its lists.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>
module gpumem:pool_reports.impl;
import :pool_reports;
import :block;
import :chunk_list;
import :driver;
import :error;
import :free_lists;
import :frees;
import :intrusive_list;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :process;
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

struct listed_pools {
  sync::mutex mutex;
  intrusive_list<leak_report> pools __attribute__((guarded_by(mutex)));
  bool registered __attribute__((guarded_by(mutex))) = false;
};

// Never destroyed: static objects may end their pools after this list would be destroyed.
listed_pools& listed() {
  static auto* const all = new listed_pools;
  return *all;
}

} // namespace

bool reports_leaks() { return is_set_in_environment("GPUMEM_REPORT_LEAKS"); }

leak_report::leak_report(char const* name, reader read, void* pool) : name_{name}, read_{read}, pool_{pool} {
  auto& all = listed();
  sync::lock const lock{all.mutex};
  if (!all.registered) at_driver_exit(write_all);
  all.registered = true;
  all.pools.push_back(*this);
}

leak_report::~leak_report() {
  if (forked()) return;
  auto& all = listed();
  sync::lock const lock{all.mutex};
  all.pools.remove(*this);
}

void leak_report::write_all() noexcept {
  auto& all = listed();
  sync::lock const lock{all.mutex};
  for (auto const* each = all.pools.first(); each; each = each->links_.next) each->write();
}

void leak_report::write() const noexcept try {
  auto const found = read_(pool_);
  if (found.count == 0) return;
  std::fprintf(stderr, "gpumem: %s: blocks never freed: %zu, of %zu bytes in all; the largest:\n", name_, found.count,
               found.bytes);
  for (auto const& one : found.largest) {
    std::fprintf(stderr, "gpumem:   %zu bytes at %p, allocated for stream %llu\n", one.bytes, one.base,
                 static_cast<unsigned long long>(one.stream));
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "gpumem: %s: live blocks cannot be listed: %s\n", name_, error.what());
}

namespace {

enum class group : std::uint8_t { live, cached, free };

// Sums over blocks of the same group and stream, and of the same size after rounding up to a power of two. Free ranges
// have no stream.
struct row {
  std::size_t blocks = 0;
  std::size_t bytes = 0;
};
struct row_key {
  group in;
  std::uint64_t stream;
  int log2; // of the size
  auto operator<=>(row_key const&) const = default;
};
using row_map = std::map<row_key, row>;

struct memory_counts {
  row_map rows;
  std::size_t reserved = 0;
  std::size_t limit = 0;
  std::size_t largest_free = 0;
};

group group_of(block const& block) noexcept {
  if (block.is_live()) return group::live;
  return block.is_free() || block.state() == block_state::quick_listed ? group::free : group::cached;
}

memory_counts count_memory(pool_parts& parts, shard_frees& frees) {
  memory_counts counts;
  all_shards_lock const lock{parts.shards};
  frees.drain_all_remote_frees();
  counts.reserved = parts.chunks.reserved();
  counts.limit = parts.chunks.limit();
  parts.chunks.visit([&](chunk const& parent) {
    parent.visit([&](block const& one) {
      if (one.state() == block_state::hole) return;
      auto const in = group_of(one);
      auto const stream = in == group::free ? 0 : one.stream->id();
      auto& counted = counts.rows[{in, stream, static_cast<int>(std::bit_width(one.bytes - 1))}];
      ++counted.blocks;
      counted.bytes += one.bytes;
      if (in == group::free) counts.largest_free = std::max(counts.largest_free, one.bytes);
    });
  });
  return counts;
}

std::string blocks_text(row const& counted, char const* noun) {
  return std::to_string(counted.blocks) + " " + noun + (counted.blocks == 1 ? ", " : "s, ") + size_text(counted.bytes);
}

std::string sum_text(row_map const& rows, group group, char const* noun) {
  row sum;
  for (auto const& [key, counted] : rows) {
    if (key.in != group) continue;
    sum.blocks += counted.blocks;
    sum.bytes += counted.bytes;
  }
  return blocks_text(sum, noun);
}

std::string line_of(row_key const& key, row const& counted) {
  auto const& [in, stream, log2] = key;
  auto const up_to = ", each of up to " + size_text(std::size_t{1} << log2) + "\n";
  if (in == group::free) return "  free: " + blocks_text(counted, "range") + up_to;
  return std::string{in == group::live ? "  live" : "  cached"} + " of stream " + std::to_string(stream) + ": " +
         blocks_text(counted, "block") + up_to;
}

} // namespace

std::string describe_memory(pool_parts& parts, shard_frees& frees) {
  auto const found = count_memory(parts, frees);
  auto text = "gpumem: " + parts.options.name + " has reserved " + size_text(found.reserved);
  if (found.limit) text += " of at most " + size_text(found.limit);
  text += ": live " + sum_text(found.rows, group::live, "block") + "; cached " +
          sum_text(found.rows, group::cached, "block") + "; free " + sum_text(found.rows, group::free, "range") +
          ", the largest " + size_text(found.largest_free) + "\n";
  for (auto const& [key, counted] : found.rows) text += line_of(key, counted);
  return text;
}

void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& failure) noexcept try {
  std::ofstream file{parts.options.failure_report, std::ios::app};
  file << "gpumem: a request for " << size_text(failure.requested) << " failed: " << to_string(failure.reason)
       << (is_no_addresses(failure) ? ", since the pool found no addresses for more pages\n" : "\n")
       << describe_memory(parts, frees);
} catch (...) {} // without a report the caller still gets the failure

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
add_free_statistics(pool_shard& shard, statistics& sum, std::vector<stream_timeline const*>& users) {
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
    shard_lock const lock{*each, std::adopt_lock};
    add_shard(*each, sums);
  }
  if (sums.agree) return sums;
  sums = {};
  all_shards_lock const lock{parts_.shards};
  for (auto const& each : parts_.shards.all()) add_shard(*each, sums);
  return sums;
}

void pool_statistics::add_shard(pool_shard& shard, shard_sums& sums) {
  auto& sum = sums.all;
  if (parts_.mode.fast_path()) frees_.drain_remote_frees(shard);
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

std::optional<block_info> pool_statistics::find(void const* pointer) {
  all_shards_lock const lock{parts_.shards};
  frees_.drain_all_remote_frees();
  auto const* const parent = parts_.chunks.find_containing(pointer);
  auto const* const found = parent ? parent->find_containing(pointer) : nullptr;
  if (!found || found->state() == block_state::hole) return std::nullopt;
  if (!found->is_live()) return block_info{found->pointer(), 0, found->bytes, 0, false};
  return block_info{found->pointer(), found->requested, found->bytes, found->stream->id(), true};
}

live_blocks pool_statistics::find_live() {
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

// Returns all ranges, and for each the region of mapped memory in which it lies. A hole, which has no mapped pages,
// ends a region.
std::vector<memory_range> pool_statistics::memory_map() {
  all_shards_lock const lock{parts_.shards};
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

[[clang::requires_capability(one_shard, all_shards)]] bool is_consistent_with(pool_parts const& parts,
                                                                              cache_counts const& cached) {
  std::size_t free = 0, small = 0, larger = 0, taken = 0;
  std::int64_t live = 0;
  bool consistent = true;
  parts.chunks.visit([&](chunk const& parent) {
    auto end = parent.base;
    std::size_t not_free = 0;
    block const* lower = nullptr;
    parent.visit([&](block const& block) {
      // The blocks of a chunk lie side by side without gaps.
      consistent =
          consistent && block.base == end && block.lower == lower && block.bytes > 0 && block.bytes % granule == 0;
      consistent = consistent && block.parent == &parent && block.uses.size() <= stream_uses::max_streams;
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
      bool const counted_live =
          state == block_state::allocated || state == block_state::evicted || state == block_state::remote_freed;
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
  return consistent && free == in_lists && free == parts.free_bytes() && taken + free == parts.chunks.reserved() &&
         reserved == parts.chunks.reserved() && small == cached.usage[size_class::small].in_use &&
         small + larger == cached.cached() && parts.caches.is_balanced(cached) && live == counted;
}

} // namespace

bool is_consistent(pool_parts& parts, shard_frees& frees) {
  all_shards_lock const lock{parts.shards};
  frees.drain_all_remote_frees();
  bool consistent = false;
  parts.caches.visit_locked([&](cache_counts const& cached) {
    assert_all_shards_held();
    consistent = is_consistent_with(parts, cached);
  });
  return consistent;
}

} // namespace gpumem::detail
