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

void pool_shard::add(std::unique_ptr<address_range> made) noexcept {
  auto const first = reinterpret_cast<std::uintptr_t>(made->pages.base());
  include(first, first + made->pages.address_space());
  addresses.push_back(std::move(made));
}

} // namespace gpumem::detail
