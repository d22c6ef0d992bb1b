// Decides when requests that wait count as stalled: nothing that could help them has happened for the timeout.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
module gpumem:stall_detector.impl;
import :stall_detector;
import :sync;

namespace gpumem::detail {

bool stall_detector::enabled() const noexcept { return timeout_ > sync::duration{0}; }

sync::time_point stall_detector::stalls_at(std::uint64_t changes) noexcept {
  auto const signs = changes - vain_ + grants_;
  if (std::exchange(signs_, signs) != signs) quiet_since_ = sync::now();
  return quiet_since_ + std::min<sync::duration>(timeout_, std::chrono::years{1}); // so that the sum cannot overflow
}

bool stall_detector::has_stalled(std::uint64_t changes) noexcept {
  return enabled() && stalls_at(changes) <= sync::now();
}

} // namespace gpumem::detail
