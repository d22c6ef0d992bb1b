// backoff: the pauses between polls, and the end of a wait.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:backoff;
import :std;
import :sync;

namespace gpumem::detail {

/// Returns the end of a wait of at most `longest` that begins now: now for a negative time, and time_point::max() for
/// one that is too long for the clock.
export sync::time_point deadline_after(sync::duration longest) noexcept;

/// Gives the pauses between polls, each longer than the one before by `step`, up to a maximum. After a time t the pause
/// is about the square root of 2 t step. So a wait of time t notices its end at most one pause late, which is a small
/// part of t.
export class backoff {
public:
  static constexpr sync::duration step{20'000};

  explicit backoff(sync::duration longest) noexcept : longest_{longest} {}

  sync::duration next() noexcept;
  /// Returns the number of pauses since the last restart.
  inline unsigned count() const noexcept { return count_; }
  inline void restart() noexcept { count_ = 0; }

private:
  sync::duration const longest_;
  unsigned count_ = 0;
};

} // namespace gpumem::detail
