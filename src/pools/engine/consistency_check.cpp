// Visits every block and every list of a pool, and checks that they and the pool's counts agree.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
module gpumem:consistency_check.impl;
import :consistency_check;
import :block;
import :chunk_list;
import :free_lists;
import :frees;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :shard_list;
import :stream_timeline;
import :thread_caches;

namespace gpumem::detail {
namespace {

// Returns the bytes on a free list. Sets `consistent` to false if a range on it is not free, belongs to another list or
// is out of order.
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

[[clang::requires_capability(one_shard, all_shards)]] bool is_consistent_with(pool_parts const& parts,
                                                                              cache_counts const& cached) {
  std::size_t free = 0, small = 0, larger = 0, taken = 0;
  std::int64_t live = 0;
  bool consistent = true;
  parts.chunks.visit([&](chunk const& parent) {
    auto end = parent.base;
    std::size_t not_free = 0;
    block const* lower = nullptr;
    parent.visit([&](block const& each) {
      // The blocks of a chunk lie side by side without gaps.
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
      auto const state = each.state(); // read once: a free by another thread may change it meanwhile
      bool const counted_live =
          state == block_state::allocated || state == block_state::evicted || state == block_state::remote_freed;
      if (counted_live) live += static_cast<std::int64_t>(each.requested);
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
  all_shards_lock const held{parts.shards};
  frees.drain_all_remote_frees();
  bool consistent = false;
  parts.caches.visit_locked([&](cache_counts const& cached) {
    assert_all_shards_held();
    consistent = is_consistent_with(parts, cached);
  });
  return consistent;
}

} // namespace gpumem::detail
