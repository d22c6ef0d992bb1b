// Sets and checks the limits of the thread caches; claims shares of the budget.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
module gpumem:cache_limits.impl;
import :cache_limits;
import :block;

namespace gpumem::detail {

bool cache_budget::claim(share& share, std::int64_t need) noexcept {
  // A thread claims 64 KiB in one step, so that few calls write the count that all threads share.
  for (auto const amount : {std::max(need, std::int64_t{64} << 10), need}) {
    if (claimable(share) < amount) continue;
    if (unclaimed_.fetch_sub(amount, std::memory_order_relaxed) >= amount) {
      share.allowance += amount;
      share.claimed.fetch_add(
          amount, std::memory_order_release); // after the allowance, because usage::add() reads `claimed` first
      return true;
    }
    unclaimed_.fetch_add(amount, std::memory_order_relaxed);
  }
  return false;
}

void cache_budget::give_back(share& share) noexcept {
  share.allowance = 0;
  unclaimed_.fetch_add(share.claimed.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

void cache_budget::set_total(std::size_t bytes, std::size_t max_share) noexcept {
  max_share_.store(static_cast<std::int64_t>(max_share), std::memory_order_relaxed);
  auto const now = static_cast<std::int64_t>(bytes);
  unclaimed_.fetch_add(now - total_, std::memory_order_relaxed);
  total_ = now;
}

void cache_budget::usage::add(share const& share) noexcept {
  // Reads `claimed` before the allowance. In the other order, a claim between the two reads would count as bytes in
  // use.
  auto const claimed = share.claimed.load(std::memory_order_acquire);
  std::int64_t const spare = share.allowance;
  in_use += static_cast<std::size_t>(std::max(claimed - spare, std::int64_t{0}));
  allowance += spare;
}

void cache_limits::set(bool enabled, std::array<std::size_t, size_class::kinds> const& limits, std::size_t threads,
                       event_threshold threshold) noexcept {
  for (auto const kind : {size_class::small, size_class::medium}) {
    budgets_[kind].set_total(limits[kind], limits[kind] / threads);
  }
  auto const large = limits[size_class::large];
  budgets_[size_class::large].set_total(large,
                                        large); // no smaller bound per thread: a large cache has eight blocks at most
  largest_block_.store(std::min(large, std::max(large / tuning::large_block_fraction, tuning::always_cached_bytes)),
                       std::memory_order_relaxed);
  threshold_.store(threshold, std::memory_order_relaxed);
  enabled_.store(enabled, std::memory_order_relaxed);
}

bool cache_limits::is_balanced(usage const& sum) const noexcept {
  bool all = true;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all = all && budgets_[kind].is_balanced(sum[kind]);
  return all;
}

} // namespace gpumem::detail
