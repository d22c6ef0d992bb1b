// Calls of a pool that take the locks of all its shards: they reserve and trim memory, set the limit, pin and open
// pages, reset peaks, wait for streams, and close the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:pool_engine.impl;
import :pool_engine;
import :backend_parts;
import :cache_limits;
import :chunk_list;
import :deferred_release;
import :device;
import :error;
import :executor;
import :frees;
import :memory_watcher;
import :page_store;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :pool_shard;
import :pool_upstream;
import :process;
import :range_allocator;
import :release_task;
import :request_queue;
import :reuse_rules;
import :shard_list;
import :stream_timeline;
import :sync;
import :thread_caches;
import :timeline_registry;
import :waiter;

namespace gpumem::detail {

pool_engine::pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options)
    : parts_{std::move(upstream), std::move(options), release_}, frees_{parts_}, requests_{parts_, frees_},
      monitor_{parts_, requests_}, queue_{parts_, frees_, requests_, monitor_},
      request_passes_{parts_, frees_, requests_, monitor_, queue_},
      free_path_{parts_, frees_, requests_, monitor_, queue_}, allocate_path_{parts_, frees_, queue_},
      release_{parts_, frees_, monitor_, request_passes_, *this} {
  default_executor(); // starts the library thread: frees and destructors use it, but must not start it
  deferred_release::retry_releases();
  if (auto const made = reserve(parts_.options.initial_size); !made)
    throw_failure_in(parts_.options.name.c_str(), made.error(), {.limit = parts_.options.limit});
}

expected<std::size_t, failure> pool_engine::reserve(std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const lock{parts_.shards};
  auto const limit = parts_.chunks.limit();
  auto& shard = parts_.shards.shard_of_thread();
  if (bytes > (limit ? limit : PTRDIFF_MAX)) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  if (bytes > parts_.chunks.reserved()) {
    // When the first calls did this, 16 streams of short kernels lost 2 % of their first 2,000 steps to it.
    shard.ranges.reserve_metadata(1024, 16);
    parts_.caches.ensure_storage(sync::thread_index());
  }
  auto missing = parts_.backend->grow_to(bytes, shard);
  if (!missing && allocate_path_.release_closed_pools(missing.error())) missing = parts_.backend->grow_to(bytes, shard);
  if (!missing) return unexpected<failure>{failure{missing.error().reason, missing.error().code, bytes}};
  if (*missing > 0) frees_.flush_beyond_threshold();
  return missing;
}

void pool_engine::set_limit(std::size_t bytes) {
  check_limit(bytes);
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  parts_.chunks.set_limit(bytes);
  after_limit_change(waiters);
}

void pool_engine::after_limit_change(woken_waiters& waiters) {
  parts_.mode.update();
  parts_.requests.count_change();
  queue_.wake_ended(waiters); // ends requests for more than the limit
  queue_.wake_next(waiters);
  monitor_.schedule_poll(); // younger work may now hold enough for the first request
}

bool pool_engine::add_outside(std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  timeline_registry::cover_own_defaults();
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  bool added = parts_.backend->add_outside(bytes);
  while (!added) {
    auto const keep = parts_.chunks.room_beside(bytes);
    bool const more = keep && release_.release(*keep) > 0; // other threads may grow the pool meanwhile
    added = parts_.backend->add_outside(bytes);
    if (!more) break;
  }
  after_limit_change(waiters);
  return added;
}

void pool_engine::remove_outside(std::size_t bytes) {
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  parts_.chunks.remove_outside(bytes);
  after_limit_change(waiters);
}

void pool_engine::divide(void* pointer, std::size_t bytes) {
  auto const found = parts_.shards.find_live(pointer);
  shard_lock const lock{parts_.shards, *found.shard};
  found.shard->ranges.divide(*found.that, bytes);
  ++found.shard->live_blocks;
  ++found.shard->counts.allocations; // each of the two will count as a free
}

address_range& pool_engine::open_range(std::size_t bytes) {
  throw_if_child();
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const lock{parts_.shards};
  return parts_.backend->open_range(bytes);
}

void pool_engine::close_range(address_range& range) noexcept {
  all_shards_lock const lock{parts_.shards};
  parts_.backend->close_range(range);
}

std::size_t pool_engine::trim(std::size_t keep) {
  upstream_call::throw_if_here(parts_.shards);
  timeline_registry::cover_own_defaults();
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  auto const given = release_.release(keep); // empties the thread caches, so shards can become spare
  if (parts_.shards.end_round()) parts_.mode.update();
  parts_.requests.count_change();
  queue_.wake_next(waiters);
  return given;
}

// While this thread holds all locks and no thread grows the pool, none tells watchers.
void pool_engine::watch_memory(memory_watcher& watcher, bool begin) {
  auto& watchers = parts_.upstream->watchers();
  if (!begin) return watchers.remove(watcher);
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const lock{parts_.shards};
  while (parts_.backend->wait_for_growth()) {}
  if (!watchers.add(watcher)) return;
  parts_.chunks.visit([&](chunk const& parent) {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    auto const end = [&] {
      if (bytes > 0) watcher.on_mapped(base, bytes);
      bytes = 0;
    };
    parent.visit([&](block const& each) {
      if (each.state() == block_state::hole) return end();
      if (bytes == 0) base = static_cast<std::byte*>(each.pointer());
      bytes += each.bytes;
    });
    end();
  });
}

std::size_t pool_engine::give_back() noexcept {
  if (upstream_call::runs_here(parts_.shards)) return 0;
  try {
    return trim(0);
  } catch (std::bad_alloc const&) { return 0; } // the host has no memory for the polls
}

std::size_t pool_engine::reserved() noexcept {
  all_shards_lock const lock{parts_.shards};
  return parts_.chunks.reserved();
}

void pool_engine::reset_peaks() {
  all_shards_lock const lock{parts_.shards};
  parts_.chunks.reset_peak();
  parts_.shards.reset_peak(parts_.caches.snapshot().cached_requested);
}

bool pool_engine::synchronize(sync::duration longest) {
  timeline_registry::cover_own_defaults();
  std::vector<stream_timeline*> open;
  {
    all_shards_lock const lock{parts_.shards};
    frees_.run_deferred(nullptr);
    frees_.flush_thread_caches();
    open = reuse_rules::streams_in_use(false, parts_.shards.everywhere());
  }
  return wait_for_streams(open, longest) && !lost();
}

void pool_engine::refuse_requests() noexcept {
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  refuse_requests(waiters);
}

void pool_engine::refuse_requests(woken_waiters& waiters) noexcept {
  parts_.requests.set_closed();
  parts_.mode.update();
  frees_.flush_thread_caches();
  parts_.requests.count_change();
  queue_.wake_ended(waiters);
}

bool pool_engine::drop_last_handle() noexcept {
  timeline_registry::cover_own_defaults();
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  parts_.mode.set_no_handles();
  refuse_requests(waiters);
  return requests_.is_pool_unused();
}

void pool_engine::close() noexcept { release_.close(); }

bool pool_engine::pin(void const* pointer, std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const lock{parts_.shards};
  return parts_.backend->pin(pointer, bytes);
}

void pool_engine::unpin(void const* pointer, std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  parts_.backend->unpin(pointer, bytes);
  parts_.requests.count_change();
  queue_.wake_next(waiters);
}

void pool_engine::open_to(device peer) {
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const lock{parts_.shards};
  check(parts_.backend->open_to(peer), "cuMemSetAccess");
  parts_.caches.add_devices(cache_limits::bit_of(peer.ordinal()));
}

expected<exported_page, failure> pool_engine::export_page(void const* pointer) {
  if (upstream_call::runs_here(parts_.shards)) return unexpected<failure>{failure_of(broken_rule::inside_growth, 0)};
  all_shards_lock const lock{parts_.shards};
  return parts_.backend->export_page(pointer);
}

} // namespace gpumem::detail
