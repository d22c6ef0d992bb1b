// Taking parts of what may be kept, and giving them back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
module gpumem:credit.impl;
import :credit;

namespace gpumem::detail {
namespace {

inline constexpr std::int64_t quantum = 64 << 10;

} // namespace

bool credit::borrow(part& mine, std::int64_t need) noexcept {
  for (auto const want : {std::max(need, quantum), need}) {
    if (most_for(mine) < want) continue;
    if (left_.fetch_sub(want, std::memory_order_relaxed) >= want) {
      mine.allowance += want;
      mine.taken.fetch_add(want, std::memory_order_release); // as sum reads
      return true;
    }
    left_.fetch_add(want, std::memory_order_relaxed);
  }
  return false;
}

void credit::give_back(part& mine) noexcept {
  mine.allowance = 0;
  left_.fetch_add(mine.taken.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

void credit::set_total(std::size_t bytes, std::size_t share) noexcept {
  share_.store(static_cast<std::int64_t>(share), std::memory_order_relaxed);
  auto const now = static_cast<std::int64_t>(bytes);
  left_.fetch_add(now - total_, std::memory_order_relaxed);
  total_ = now;
}

void credit::sum::add(part const& one) noexcept {
  // In this order.
  auto const taken = one.taken.load(std::memory_order_acquire);
  std::int64_t const spare = one.allowance;
  in_use += static_cast<std::size_t>(std::max(taken - spare, std::int64_t{0}));
  allowance += spare;
}

} // namespace gpumem::detail
