// The constructor of a shard, and its addresses.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
module gpumem:pool_shard.impl;
import :pool_shard;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

pool_shard::pool_shard(double poll_share, bool locked)
    : mutex{locked}, poll_budget{poll_share, std::chrono::microseconds{200}, sync::now()} {}

void pool_shard::add(std::unique_ptr<address_range> range) noexcept {
  auto const first = reinterpret_cast<std::uintptr_t>(range->pages.base());
  include(first, first + range->pages.address_space());
  addresses.push_back(std::move(range));
}

} // namespace gpumem::detail
