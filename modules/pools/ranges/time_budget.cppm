// A budget of the time that a pool may spend on moves of pages or on polls of events.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
export module gpumem:time_budget;
import :std;
import :sync;

namespace gpumem::detail {

/// A share of the time in which the owner works, from 0 (no time) to 1 (no bound). Time that is not spent is saved, up
/// to `max_saved`; the budget starts with none. One thread at a time: the owner's lock guards it.
export class time_budget {
public:
  using nanoseconds = std::chrono::duration<double, std::nano>;

  time_budget(double share, nanoseconds max_saved, sync::time_point now) noexcept
      : share_{share}, max_saved_{max_saved}, last_{now} {}

  /// Returns whether the time is not bounded. Then the owner need not read the clock.
  inline bool unlimited() const noexcept { return share_ >= 1; }
  /// Returns the time that may be spent at `now`; negative if more time was spent than the budget had. The owner has
  /// worked until `now`. A time before that of an earlier call earns nothing.
  inline nanoseconds left(sync::time_point now) noexcept {
    nanoseconds const passed{now - std::exchange(last_, std::max(last_, now))};
    saved_ = std::min(saved_ + share_ * std::max(passed, nanoseconds{0}), max_saved_);
    return saved_;
  }
  /// Notes that the owner has not worked since the last call. That time earns nothing.
  inline void pause(sync::time_point now) noexcept { last_ = now; }
  inline void spend(nanoseconds time) noexcept { saved_ -= time; }

private:
  double const share_;
  nanoseconds const max_saved_;
  nanoseconds saved_{0};
  sync::time_point last_;
};

} // namespace gpumem::detail
