// Sets and checks the limits of the thread caches.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
module gpumem:cache_limits.impl;
import :cache_limits;
import :block;
import :cache_budget;
import :tuning;

namespace gpumem::detail {

void cache_limits::set(bool on, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
                       std::size_t event_threshold_bytes) noexcept {
  for (auto const kind : {size_class::small, size_class::medium}) {
    budgets_[kind].set_total(limits[kind], limits[kind] / threads);
  }
  auto const large = limits[size_class::large];
  budgets_[size_class::large].set_total(large,
                                        large); // no smaller bound per thread: a large cache has eight blocks at most
  largest_block_.store(std::min(large, std::max(large / tuning::large_block_fraction, tuning::always_cached_bytes)),
                       std::memory_order_relaxed);
  event_threshold_bytes_.store(event_threshold_bytes, std::memory_order_relaxed);
  enabled_.store(on, std::memory_order_relaxed);
}

bool cache_limits::is_balanced(usage const& sum) const noexcept {
  bool all = true;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all = all && budgets_[kind].is_balanced(sum[kind]);
  return all;
}

} // namespace gpumem::detail
