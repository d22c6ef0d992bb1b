// How much of its time a pool spends on moving pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
export module gpumem:move_budget;
import :std;
import :sync;

namespace gpumem::detail {

/// The pages that a pool may move. Their cost may be a share of the time that passes; the pool saves time that it does
/// not use, 100 ms at most. A page costs a constant, so that moves read no clock. Guarded by all locks of the pool that
/// keeps it.
export class move_budget {
public:
  /// `share`: of the time, from 0 (no page moves) to 1 (no bound). The budget is full at first.
  move_budget(double share, sync::time_point now) noexcept : share_{share}, last_{now} {}

  /// The number of pages that may move now.
  inline std::size_t pages(sync::time_point now) noexcept {
    if (share_ >= 1) return std::numeric_limits<std::size_t>::max();
    if (share_ <= 0) return 0;
    std::chrono::duration<double, std::nano> const passed{now - std::exchange(last_, now)};
    saved_ = std::min(saved_ + share_ * passed.count(), most_saved);
    return static_cast<std::size_t>(saved_ / page_cost);
  }
  /// At most as many as `pages` has just returned.
  inline void spend(std::size_t pages) noexcept {
    if (share_ < 1) saved_ -= static_cast<double>(pages) * page_cost;
  }

private:
  static constexpr double page_cost = 40e3;   // ns; a move took 33 us on an H200
  static constexpr double most_saved = 100e6; // ns: the longest burst of moves

  double const share_;
  double saved_ = most_saved;
  sync::time_point last_;
};

} // namespace gpumem::detail
