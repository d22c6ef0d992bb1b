// A budget of the time that a pool may spend on moves of pages or on polls of events.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
export module gpumem:time_budget;
import :std;
import :sync;

namespace gpumem::detail {

/// A share of the time that passes, from 0 (no time) to 1 (no bound). Time that is not spent is saved, up to
/// `max_saved`; the budget starts with that much. One thread at a time: the owner's lock guards it.
export class time_budget {
public:
  using nanoseconds = std::chrono::duration<double, std::nano>;

  time_budget(double share, nanoseconds max_saved, sync::time_point now) noexcept
      : share_{share}, max_saved_{max_saved}, saved_{share > 0 ? max_saved : nanoseconds{0}}, last_{now} {}

  /// Returns whether the time is not bounded. Then the owner need not read the clock.
  inline bool unlimited() const noexcept { return share_ >= 1; }
  /// Returns the time that may be spent at `now`; negative if more time was spent than the budget had.
  inline nanoseconds left(sync::time_point now) noexcept {
    nanoseconds const passed{now - std::exchange(last_, now)};
    saved_ = std::min(saved_ + share_ * passed, max_saved_);
    return saved_;
  }
  inline void spend(nanoseconds time) noexcept { saved_ -= time; }

private:
  double const share_;
  nanoseconds const max_saved_;
  nanoseconds saved_;
  sync::time_point last_;
};

} // namespace gpumem::detail
