// Whether and how much thread caches may hold, and their flush.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
module gpumem:pool_mode.impl;
import :growth_policy;
import :pool_backend;
import :pool_engine;
import :range_allocator;
import :reuse_rules;
import :size_class;
import :stream_timeline;
import :stream_uses;
import :thread_caches;

namespace gpumem::detail {

bool pool_engine::flush_thread_caches() noexcept {
  auto* all = parts_.caches.flush();
  drain_all_remote_frees();
  bool any = all;
  while (all) {
    auto& kept = *all;
    all = all->next;
    add_stream(*kept.uses.begin()->timeline);
    free_cached_block(kept);
  }
  for (auto const& each : parts_.shards.all()) any |= each->ranges.flush_quick_lists();
  return any;
}

// Flushes the thread caches if caching is off, as it is beyond the release threshold. Call this only after new memory
// is granted: a flushed neighbour could coalesce with it.
void pool_engine::flush_beyond_threshold() noexcept {
  if (!parts_.caches.enabled()) flush_thread_caches();
}

void pool_engine::set_under_pressure(bool on) noexcept {
  if (under_pressure_ == on) return;
  under_pressure_ = on;
  update_mode();
}

// Caching is off under pressure, beyond the release threshold, after the pool was closed or has lost its last handle,
// and while deferred frees wait for a call. It is also off for host-accessible memory: the host must not get blocks
// that the device still uses.
void pool_engine::update_mode() noexcept {
  constexpr std::size_t max_small = std::size_t{64} << 20, a_shard = std::size_t{4} << 20;
  // Threads with shards get a larger budget of medium blocks, since they lock all shards for a block that they lack.
  // With a quarter of it, two fifths of the medium requests of 16 threads were served by shards; now a tenth is.
  constexpr std::size_t times_for_threads = 4;
  bool const fast_path =
      !under_pressure_ && !requests_.is_closed() && !no_handles_ && !deferred_ && !too_much_reserved();
  auto const at_least = [&](std::size_t times) {
    return std::min(
        {parts_.backend.chunks().reserved() / 2, times * a_shard * parts_.shards.all().size(), times * max_small});
  };
  auto const least = at_least(1);
  auto const small = std::clamp(parts_.backend.chunks().reserved() / 100, least, max_small);
  auto const medium = at_least(parts_.shards.single() ? 1 : times_for_threads);
  largest_numbered_.store(parts_.shards.single() ? default_largest_numbered : size_class::largest_medium,
                          std::memory_order_relaxed);
  auto const threads = std::max<std::size_t>(parts_.shards.all().size() - 1, 1); // threads with a shard of their own
  fast_path_ = fast_path;
  near_limit_.store(parts_.backend.chunks().near_limit(), std::memory_order_relaxed);
  frees_record_.store(!fast_path || parts_.backend.chunks().near_limit(), std::memory_order_relaxed);
  parts_.caches.set_limits(fast_path && !parts_.rules.host_accessible(), {small, medium, least}, threads,
                           records_events() ? event_threshold_bytes() : SIZE_MAX);
}

// The pool serves a second stream: from now on frees record events.
void pool_engine::enable_cross_stream() noexcept {
  multi_stream_ = true;
  update_mode();
}

} // namespace gpumem::detail
