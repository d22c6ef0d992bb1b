// Makes calls at the times that the trace recorded.
// SPDX-License-Identifier: Apache-2.0
module;

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

export module replay:pace;

import :plan;

namespace replay {

/// The clock of passes, as a number. Templates of a module must not subtract time points: reduced BMIs lack that
/// operator, since the standard keeps no declaration of the global module fragment for a dependent expression.
export struct steady_nanoseconds {
  static inline std::int64_t now() noexcept {
    return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
  }
};

/// Delays each call of a pass until its recorded time since `begin`, and stores the nanoseconds that it took, including
/// the clock. A late call is made at once; later calls keep their own times. The thread spins, since a sleep may end
/// late. For passes over one plan, which must outlive the timer. Not thread-safe.
export template <class Clock = steady_nanoseconds> class pace_timer {
public:
  explicit pace_timer(plan const& of)
      : operations_{of.operations.data()}, microseconds_{of.microseconds}, nanoseconds_(of.operations.size()) {}

  /// Call directly before each pass.
  void begin() noexcept {
    nanoseconds_.clear();
    origin_ = Clock::now();
  }

  inline void before(operation const& next) noexcept {
    std::int64_t const due = origin_ + 1000 * static_cast<std::int64_t>(microseconds_[place_of(next)]);
    do { begin_ = Clock::now(); } while (begin_ < due);
  }
  inline void after(operation const&, void*) noexcept {
    nanoseconds_.push_back(static_cast<double>(Clock::now() - begin_));
  }
  /// Returns the durations of the calls since `begin`, in their order.
  std::span<double const> nanoseconds() const noexcept { return nanoseconds_; }

private:
  // Returns the operation's index in the plan, which is also the index of its time.
  inline std::size_t place_of(operation const& one) const noexcept {
    return static_cast<std::size_t>(&one - operations_);
  }

  operation const* operations_;
  std::span<std::uint64_t const> microseconds_;
  std::vector<double> nanoseconds_; // filled once at construction, so that no pass pays for page faults
  std::int64_t origin_ = 0;
  std::int64_t begin_ = 0;
};

} // namespace replay
