// Computes the next pause between polls, and the end of a wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
module gpumem:backoff.impl;
import :backoff;
import :sync;

namespace gpumem::detail {

sync::time_point deadline_after(sync::duration longest) noexcept {
  auto const now = sync::now();
  return now + std::clamp(longest, sync::duration{0}, sync::time_point::max() - now);
}

sync::duration backoff::next() noexcept { return std::min<sync::duration>(++count_ * step, longest_); }

} // namespace gpumem::detail
