// Allocation: from free memory by the reuse tiers, by growth, after a stream's wait, and at last after a host wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:pool_allocate.impl;
import :allocation_request;
import :block;
import :chunk;
import :error;
import :pool_backend;
import :pool_engine;
import :pool_shard;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :size_class;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

// A thread may steal `max_steals` times before its own shard grows instead, since each steal locks all shards.
// Steals more than `steal_window` calls apart do not add up.
inline constexpr unsigned max_steals = std::max(sync::contention_threshold / 8, 2u);
inline constexpr std::uint64_t steal_window = 1024;
// Where threads have shards of their own, the peak of the live bytes is exact to 1/16 of the reserved bytes. With 1/512
// for each shard, two threads spent a third of their time on the shared count.
inline constexpr std::size_t peak_fraction = 16;

// The statistic that counts the allocations of each reuse tier.
inline constexpr std::array<std::uint64_t statistics::*, 4> reuses{
    &statistics::reuse_same_stream, &statistics::reuse_ordered, &statistics::reuse_completed,
    &statistics::reuse_waited};

bool steals_expired(pool_shard const& thief) noexcept {
  return thief.counters.locked_calls - thief.last_steal > steal_window;
}

} // namespace

expected<void*, failure> pool_engine::allocate_slow(stream_key const& key, size_class size, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  allocation_request request{key, bytes, size.bytes, size.number, std::max(alignment, granule), sync::thread_index()};
  if (near_limit_.load(std::memory_order_relaxed)) [[unlikely]]
    request.drop_rounding();
  if (parts_.backend.chunks().limit() && request.bytes > parts_.backend.chunks().limit()) [[unlikely]]
    return fail(request, outcome::too_large);
  if (!requests_.is_open()) [[unlikely]] {
    if (auto const why = requests_.refusal_at_admission(request)) return fail(request, *why);
  }
  try {
    request.key.timeline().prepare();
  } catch (...) {
    // Without spare events, frees record none until there are some. The stream still reuses what it has freed itself.
  }
  try {
    if (auto* const p = allocate_from_shard(request)) [[likely]]
      return p;
    return allocate_from_all_shards(request);
  } catch (std::bad_alloc const&) { // the host is out of memory
    return fail(request, outcome::exhausted);
  }
}

expected<void*, failure> pool_engine::fail(allocation_request const& request, outcome why) noexcept {
  auto& shard = parts_.shards.shard_of_thread();
  auto const held = parts_.shards.lock(shard);
  shard.counts.failures += request.key.queues() != queueing::admitted;
  return unexpected<failure>{failure{why, 0, request.requested}};
}

expected<void*, failure> pool_engine::allocate_from_all_shards(allocation_request& request) {
  all_shards_lock held{parts_.shards};
  if (parts_.shards.contended() && !requests_.has_waiting()) { // while requests wait, all calls take all locks
    parts_.shards.add_for_thread();
    update_mode();
    for (auto const& each : parts_.shards.all()) live_.publish(each->live);
  }
  request.shard = &parts_.shards.shard_of_thread();
  auto& shard = *request.shard;
  ++shard.counters.locked_calls;
  shard.counters.all_locked_calls += !parts_.shards.single();
  add_stream(request.key.timeline());
  parts_.caches.ensure_storage(request.thread);
  expected<void*, failure> grown = nullptr;
  bool alone = !parts_.shards.single() && shard.steals >= max_steals && !steals_expired(shard);
  for (bool searching = true; searching;) {
    if (deferred_) run_deferred_frees(&request.key);
    if (auto* const p = alone ? search_own_shard(request) : search_all_shards(request)) return p;
    grown = grow(request, held, false);
    if (grown && *grown) return grown;
    bool const others_grew = grown.has_value();
    searching = others_grew || alone;
    alone = alone && others_grew;
  }
  request.growth_failed = true;
  request.drop_rounding();
  bool const cached_till_now = parts_.caches.enabled();
  set_under_pressure(true);
  flush_thread_caches();
  if (cached_till_now) wait_for_evictions(held);
  if (auto* const p = search_all_shards(request)) return p;
  if (auto const place = search_.find_with_wait(request, shard_list::search_order{parts_.shards, shard}))
    return commit(request, place);
  if (grown.error().reason != outcome::device_lost) {
    // A paged pool gives back only the pages that it needs, so it does that before the host waits. Other pools give
    // back all unused chunks, so they do that last.
    if (parts_.backend.paged() && (grown = grow_in_place(request, held))) return grown;
    if (request.key.may_wait()) {
      if (auto* const p = sync_and_retry(request, held)) return p;
    }
    if ((grown = grow_in_place(request, held))) return grown;
  }
  shard.counts.failures += request.key.queues() != queueing::admitted;
  if (lost()) return unexpected<failure>{failure{outcome::device_lost, where()->lost_error(), request.requested}};
  return grown;
}

// Waits until no block is evicted: a block that a thread cache has evicted is in no list until its thread frees it.
void pool_engine::wait_for_evictions(all_shards_lock& held) {
  auto const on_the_way = [&] {
    bool any = false;
    parts_.backend.chunks().visit([&](chunk const& parent) {
      range_allocator::visit(parent, [&](block const& each) { any |= each.state() == block_state::evicted; });
    });
    return any;
  };
  ++eviction_waiters_;
  while (on_the_way()) held.wait(evictions_done_);
  --eviction_waiters_;
}

// Allocates from new memory of the upstream. Returns null if another thread grew the pool meanwhile, or if the new
// memory does not serve the request: the caller searches again.
expected<void*, failure> pool_engine::grow(allocation_request const& request, all_shards_lock& held, bool exact) {
  if (parts_.backend.wait_for_growth(held)) return nullptr;
  try {
    auto const drawn = parts_.backend.grow(request, held, exact);
    if (!drawn) return unexpected<failure>{drawn.error()};
    auto* const allocated = *drawn ? commit(request, *drawn) : nullptr;
    requests_.notify();
    flush_beyond_threshold();
    return allocated;
  } catch (...) {
    flush_beyond_threshold();
    throw;
  }
}

// Moves unused pages together, or gives unused memory back, and grows in its place.
expected<void*, failure> pool_engine::grow_in_place(allocation_request const& request, all_shards_lock& held) {
  if (auto const place = parts_.backend.move_at_limit(request, held)) return commit(request, place);
  parts_.backend.release_for(request, held);
  for (;;) {
    auto const grown = grow(request, held, true);
    if (!grown || *grown) return grown;
    if (auto* const p = search_all_shards(request)) return p;
  }
}

// Allocates from the thread's own shard under its lock alone. Returns null if that fails or needs the locks of all
// shards. With a single shard this does not poll: the search under all locks costs the same then, and polls.
[[gnu::always_inline]] void* pool_engine::allocate_from_shard(allocation_request& request) {
  request.shard = parts_.shards.uncontended_shard(request.thread);
  if (!request.shard || !parts_.caches.has_storage(request.thread)) [[unlikely]]
    return nullptr;
  auto& shard = *request.shard;
  auto const held = parts_.shards.lock(shard);
  if (!may_use_one_lock(request.key.timeline())) [[unlikely]]
    return nullptr;
  drain_remote_frees(shard);
  shard_span const among{&request.shard, 1};
  auto const place = parts_.shards.single() ? search_.find_without_poll(request, among) : search_.find(request, among);
  if (!place) [[unlikely]]
    return nullptr;
  auto* const p = commit(request, place);
  ++shard.counters.locked_calls;
  return p;
}

void* pool_engine::commit(allocation_request const& request, placement place) {
  auto& from = *place.range->parent->shard;
  auto& taken = split_off(request, place);
  taken.requested = request.requested;
  taken.stream = &request.key.timeline();
  taken.class_number = request.class_number;
  ++from.live_blocks;
  count_live(from, static_cast<std::int64_t>(request.requested), parts_.caches.cached_requested_of(request.thread));
  if (&from != request.shard) [[unlikely]]
    count_steal(*request.shard);
  ++from.counts.allocations;
  if (place.how != reuse_tier::none) [[likely]]
    ++(from.counts.*reuses[static_cast<std::size_t>(place.how)]);
  return taken.pointer();
}

// Splits a block off a range. A small block of a large range is split off with others of its size, for later requests.
[[gnu::always_inline]] block& pool_engine::split_off(allocation_request const& request, placement place) {
  auto& from = *place.range->parent->shard;
  if (place.range->state() == block_state::quick_listed) {
    from.ranges.pop_quick(*place.range);
    ++from.counters.quick_list_hits;
    return *place.range;
  }
  if (parts_.backend.growth().place_high(request.bytes, from)) [[unlikely]]
    place.offset = last_fit(*place.range, request.bytes, request.alignment);
  bool const span =
      fast_path_ && request.is_small() && place.range->bytes >= range_allocator::min_blocks_for_run * request.bytes;
  return span ? from.ranges.split_run(*place.range, request.bytes)
              : from.ranges.split_off(*place.range, place.offset, request.bytes);
}

void pool_engine::count_steal(pool_shard& by) noexcept {
  ++by.counters.steals;
  if (steals_expired(by)) by.steals = 0;
  ++by.steals;
  by.last_steal = by.counters.locked_calls;
}

void pool_engine::count_live_of_many(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept {
  auto const slack = parts_.backend.chunks().reserved() / (peak_fraction * parts_.shards.all().size());
  live_.count(in.live, change, nearby, static_cast<std::int64_t>(slack));
}

// Searches the free ranges of all shards, then flushes the thread caches and repeats while a flush finds blocks.
void* pool_engine::search_all_shards(allocation_request const& request) {
  drain_all_remote_frees();
  do {
    if (auto const place = search_.find(request, shard_list::search_order{parts_.shards, *request.shard}))
      return commit(request, place);
  } while (flush_thread_caches());
  return nullptr;
}

// Serves a thread that steals too often: from its own shard, or from an unused chunk, which moves there from another
// shard. If it returns null, the caller grows the shard. The quick lists are not flushed here: that halved the speed of
// threads that allocate what other threads free.
void* pool_engine::search_own_shard(allocation_request const& request) {
  request.shard->steals = 0;
  auto place = search_.find(request, {&request.shard, 1});
  if (!place) place = parts_.backend.migrate_chunk(request);
  return place ? commit(request, place) : nullptr;
}

} // namespace gpumem::detail
