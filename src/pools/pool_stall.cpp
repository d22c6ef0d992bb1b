// Requests that wait in vain: whether the work that holds the memory goes on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <utility>
module gpumem:pool_stall.impl;
import :pool_engine;
import :sync;

namespace gpumem::detail {

// When the requests that wait count as stalled if nothing is granted or freed until then. What has happened since the
// last look counts as having happened now, so that no free has to take the time.
sync::time_point pool_engine::stalls_at() noexcept {
  auto const signs = news() - given_back_ - vain_ + grants_;
  if (std::exchange(signs_, signs) != signs) quiet_since_ = sync::now();
  return quiet_since_ + std::min<sync::duration>(options_.stall_timeout, std::chrono::years{1}); // no sum overflows
}

bool pool_engine::has_stalled() noexcept {
  return options_.stall_timeout > sync::duration{0} && stalls_at() <= sync::now();
}

void pool_engine::watch_for_stall() noexcept {
  if (has_waiting() && options_.stall_timeout > sync::duration{0}) post_late_pass(stalls_at());
}

} // namespace gpumem::detail
