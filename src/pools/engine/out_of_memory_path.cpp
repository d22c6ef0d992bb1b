// The steps by which a pool that cannot grow finds memory for a request.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
module gpumem:out_of_memory_path.impl;
import :out_of_memory_path;
import :backoff;
import :block;
import :chunk_list;
import :deferred_release;
import :device;
import :error;
import :frees;
import :growth_lock;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :range_search;
import :reuse_rules;
import :shard_allocator;
import :shard_list;
import :stream;
import :sync;
import :thread_caches;
import :tuning;

namespace gpumem::detail {
// Takes memory of closed pools first. Then empties the thread caches and searches again: first as usual, then for
// memory for which the stream must wait. After that the host waits for streams, and the pool replaces unused memory by
// new memory. A pool of pages unmaps only as many unused pages as the request needs, so it does that before the host
// waits. A pool of chunks gives back all unused chunks, so it does that only after the wait.
expected<void*, failure> out_of_memory_path::allocate(allocation_request& request, failure const& why) {
  if (why.reason == outcome::invalid_argument)
    return unexpected<failure>{why}; // the growth is called from inside itself
  request.growth_failed = true;
  request.drop_rounding(parts_.smallest_block);
  bool const within_limit = parts_.chunks.headroom() >= request.bytes;
  if (within_limit && release_closed_pools(why)) {
    if (auto const grown = grow_or_search(request)) return grown;
  }
  flush();
  if (auto* const p = allocator_.search_all(request)) return p;
  if (auto* const p = allocator_.search_with_wait(request)) return p;
  expected<void*, failure> grown = unexpected<failure>{why};
  if (why.reason == outcome::device_lost) return grown;
  if (is_never_met(request, why)) return unexpected<failure>{failure{outcome::too_large, why.code, request.requested}};
  if (parts_.backend.paged() && (grown = grow_in_place(request))) return grown;
  if (request.key.may_wait()) {
    if (auto* const p = sync_and_retry(request)) return p;
  }
  grown = grow_in_place(request);
  if (grown || grown.error().reason != outcome::too_large || is_never_met(request, grown.error())) return grown;
  return unexpected<failure>{failure{outcome::exhausted, grown.error().code, request.requested}};
}

// Returns whether no state of the pool could serve the request, which has failed for the reason `why`.
bool out_of_memory_path::is_never_met(allocation_request const& request, failure const& why) const {
  auto const& backend = parts_.backend;
  if (!backend.could_hold(request.bytes, request.alignment)) return true;
  return why.reason == outcome::too_large && !backend.has_chunk_for(request.bytes, request.alignment);
}

bool out_of_memory_path::release_closed_pools(failure const& why) noexcept {
  if (why.reason != outcome::exhausted || !deferred_release::any_closed()) return false;
  auto const where = parts_.backend.where();
  all_shards_unlock const during{parts_.shards};
  return deferred_release::give_back_complete(where ? where->ordinal() : -1);
}

// Turns the thread caches off and moves their blocks to the free lists. Then waits until no block is evicted: taken out
// of a cache by its thread, but not yet on a free list.
void out_of_memory_path::flush() {
  bool const cached_till_now = parts_.caches.enabled();
  parts_.mode.set_under_pressure(true);
  frees_.flush_thread_caches();
  if (!cached_till_now) return;
  parts_.evictions.wait(parts_.shards, [&] {
    assert_all_shards_held();
    bool any = false;
    parts_.chunks.visit([&](chunk const& parent) {
      parent.visit([&](block const& each) { any |= each.state() == block_state::evicted; });
    });
    return any;
  });
}

// Polls and searches once more: otherwise memory whose work has just completed would be unmapped and mapped again. Then
// moves unused pages together to hold the request. If that fails, gives unused memory back to the upstream, and gets
// new memory for the request instead.
expected<void*, failure> out_of_memory_path::grow_in_place(allocation_request const& request) {
  if (parts_.backend.paged()) {
    parts_.rules.poll_young_events(&request.key, parts_.everywhere());
    if (auto* const p = allocator_.search_all(request)) return p;
  }
  if (auto const place = parts_.backend.move_at_limit(request)) return allocator_.commit(request, place);
  parts_.backend.release_for(request);
  auto const grown = grow_or_search(request);
  if (!grown && request.can_park() && parts_.backend.ask_for_release()) parts_.passes.schedule();
  return grown;
}

expected<void*, failure> out_of_memory_path::grow_or_search(allocation_request const& request) {
  for (;;) {
    auto const grown = allocator_.grow(request, true);
    if (grown.is_done()) return grown.value();
    if (grown.has_failed()) return unexpected<failure>{grown.error()};
    if (auto* const p = allocator_.search_all(request)) return p;
  }
}

// Returns whether the request could succeed after streams have completed their work: from free memory, or from new
// memory after the pool has given back unused memory.
bool out_of_memory_path::sync_could_help(allocation_request const& request) const {
  if (!reuse_rules::may_complete(parts_.everywhere())) return false;
  if (parts_.backend.paged() && parts_.free_bytes() + parts_.chunks.headroom() >= request.bytes) return true;
  std::size_t run = 0;
  parts_.chunks.visit([&](chunk const& each) { run = std::max(run, each.largest_run()); });
  if (run >= request.bytes && (parts_.options.cross_stream != reuse_policy::ordered || request.key.is_host()))
    return true;
  return parts_.chunks.largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls the streams for up to `tuning::max_host_wait`, and searches after each poll. Returns null if the searches find
// nothing. The caller then gives back the chunks that have become unused.
void* out_of_memory_path::sync_and_retry(allocation_request const& request) {
  auto const deadline = sync::now() + tuning::max_host_wait;
  parts_.rules.poll_streams(nullptr, parts_.everywhere());
  for (backoff pause{tuning::max_poll_pause}; sync_could_help(request);) {
    if (parts_.backend.lost() || sync::now() >= deadline) return nullptr;
    {
      all_shards_unlock const during{parts_.shards};
      sync::sleep_for(pause.next());
    }
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
    if (auto* const p = search_after_sync(request)) return p;
    if (!request.loan) continue; // no search serves a loan: it needs pages that are complete by now
    if (auto const grown = grow_in_place(request)) return *grown;
  }
  return search_after_sync(request);
}

void* out_of_memory_path::search_after_sync(allocation_request const& request) {
  auto* const p = allocator_.search_all(request);
  if (p) ++request.shard->counts.reuse_after_sync;
  return p;
}

} // namespace gpumem::detail
