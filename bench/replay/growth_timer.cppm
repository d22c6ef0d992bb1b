// Finds the statistics of a resource at the peak of its reserved memory.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <cstdint>
#include <utility>

export module replay:growth_timer;

import gpumem;
import :plan;

namespace replay {

/// Reads the statistics of the resource after each call during which the driver was called, since only then the
/// resource can have grown. For a pass whose times are not used. Calls another watch too.
export template <class Resource, class Watch> class growth_timer {
public:
  growth_timer(Resource const& of, Watch other) : resource_{of}, other_{std::move(other)} {}

  inline void before(operation const& next) { other_.before(next); }
  void after(operation const& next, void* block) {
    if (auto const calls = gpumem::driver_api::driver_calls(); calls != calls_) {
      auto const now = resource_.statistics();
      if (now.reserved > peak_.reserved) peak_ = now;
      calls_ = gpumem::driver_api::driver_calls();
    }
    other_.after(next, block);
  }

  /// Returns the first statistics with the most reserved bytes.
  gpumem::statistics const& peak() const noexcept { return peak_; }

private:
  Resource const& resource_;
  Watch other_;
  gpumem::statistics peak_;
  std::uint64_t calls_ = 0;
};

/// Returns the share of the free bytes that is outside the largest free range; 0 if nothing is free.
export inline double fragmentation_of(gpumem::statistics const& of) {
  if (of.free == 0) return 0;
  return std::max(0.0, 1 - static_cast<double>(of.largest_free) / static_cast<double>(of.free));
}

} // namespace replay
