// What threads may keep of what they free, and taking it all out.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
module gpumem:pool_caching.impl;
import :pool_engine;
import :block;
import :chunks;
import :magazines;
import :page_growth;
import :pool_order;
import :pool_supply;
import :ranges;
import :shards;
import :size_class;
import :tags;
import :timeline;

namespace gpumem::detail {

bool pool_engine::sweep() noexcept {
  auto* all = magazines_.sweep();
  take_in_all();
  bool any = all;
  while (all) {
    auto& kept = *all;
    all = all->next;
    note_stream(*kept.tags.begin()->order);
    end_cached(kept);
  }
  for (auto const& each : shards_.all()) any |= each->ranges.join_spans();
  return any;
}

// Beyond the threshold nothing stays near a thread. Not before what has grown is granted: a neighbour that arrives may
// make it a part of itself.
void pool_engine::sweep_beyond_threshold() noexcept {
  if (!magazines_.allowed()) sweep();
}

void pool_engine::set_pressure(bool on) noexcept {
  if (pressure_ == on) return;
  pressure_ = on;
  set_caching();
}

// Threads keep what they free unless it is wanted elsewhere: under pressure, by upstream, by the end of the pool, by
// the host, which may not have what the device still uses, or where a call is to serve what was deferred.
void pool_engine::set_caching() noexcept {
  constexpr std::size_t most_small = std::size_t{64} << 20, a_shard = std::size_t{4} << 20;
  // Of threads with shards, which stop each other for what they lack: with a quarter of it two fifths of what 16
  // threads asked for of medium sizes came out of their shards, so a tenth does.
  constexpr std::size_t times_for_threads = 4;
  bool const calm = !pressure_ && !is_shut() && !abandoned_ && !deferred_ && !too_much_reserved();
  auto const at_least = [&](std::size_t times) {
    return std::min({supply_.chunks().reserved() / 2, times * a_shard * shards_.all().size(), times * most_small});
  };
  auto const least = at_least(1);
  auto const small = std::clamp(supply_.chunks().reserved() / 100, least, most_small);
  auto const medium = at_least(shards_.single() ? 1 : times_for_threads);
  largest_numbered_.store(shards_.single() ? usual_numbered : size_class::largest_medium, std::memory_order_relaxed);
  auto const threads = std::max<std::size_t>(shards_.all().size() - 1, 1); // with shards of their own
  calm_ = calm;
  scarce_.store(supply_.chunks().scarce(), std::memory_order_relaxed);
  frees_record_.store(!calm || supply_.chunks().scarce(), std::memory_order_relaxed);
  magazines_.allow(calm && !order_.host_accessible(), {small, medium, least}, threads,
                   leaves_evidence() ? most_unrecorded() : SIZE_MAX);
}

// From now on evidence is of use.
void pool_engine::begin_sharing() noexcept {
  several_ = true;
  set_caching();
}

} // namespace gpumem::detail
