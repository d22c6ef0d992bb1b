// What threads may keep of what they free, and taking it all out.
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

// Beyond the threshold nothing stays near a thread. Not before what has grown is granted: a neighbour that arrives may
// make it a part of itself.
void pool_engine::flush_beyond_threshold() noexcept {
  if (!parts_.caches.enabled()) flush_thread_caches();
}

void pool_engine::set_under_pressure(bool on) noexcept {
  if (under_pressure_ == on) return;
  under_pressure_ = on;
  update_mode();
}

// Threads keep what they free unless it is wanted elsewhere: under pressure, by upstream, by the end of the pool, by
// the host, which may not have what the device still uses, or where a call is to serve what was deferred.
void pool_engine::update_mode() noexcept {
  constexpr std::size_t max_small = std::size_t{64} << 20, a_shard = std::size_t{4} << 20;
  // Of threads with shards, which stop each other for what they lack: with a quarter of it two fifths of what 16
  // threads asked for of medium sizes came out of their shards, so a tenth does.
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
  auto const threads = std::max<std::size_t>(parts_.shards.all().size() - 1, 1); // with shards of their own
  fast_path_ = fast_path;
  near_limit_.store(parts_.backend.chunks().near_limit(), std::memory_order_relaxed);
  frees_record_.store(!fast_path || parts_.backend.chunks().near_limit(), std::memory_order_relaxed);
  parts_.caches.set_limits(fast_path && !parts_.rules.host_accessible(), {small, medium, least}, threads,
                           records_events() ? event_threshold_bytes() : SIZE_MAX);
}

// From now on events is of use.
void pool_engine::enable_cross_stream() noexcept {
  multi_stream_ = true;
  update_mode();
}

} // namespace gpumem::detail
