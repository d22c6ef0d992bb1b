// Keeps the last times per page, and finds their median.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
module gpumem:page_price.impl;
import :page_price;

namespace gpumem::detail {

page_price::page_price() noexcept : recent_{tuning::page_cost}, median_{tuning::page_cost} {}

void page_price::add(nanoseconds spent, std::size_t pages) noexcept {
  if (pages == 0) return;
  recent_[count_++ % kept] = spent / static_cast<double>(pages);
  auto sorted = recent_;
  auto const end = sorted.begin() + std::min(count_, kept), middle = sorted.begin() + (end - sorted.begin() - 1) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median_ = std::max(*middle, least);
}

} // namespace gpumem::detail
