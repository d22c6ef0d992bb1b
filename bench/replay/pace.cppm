// Calls at the times that the trace recorded.
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

/// The clock of passes, as a number: templates subtract no time points, whose operators their users may not see.
export struct steady_nanoseconds {
  static inline std::int64_t now() noexcept {
    return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
  }
};

/// Holds each call of a pass back until its recorded time since `begin` has come, and notes the nanoseconds that it
/// took, the clock included. A call that is late comes at once; the calls after it keep their own times. The thread
/// spins, since a sleep may end late. For passes over one plan, which must outlive it; one thread.
export template <class Clock = steady_nanoseconds> class pace_timer {
public:
  explicit pace_timer(plan const& of)
      : operations_{of.operations.data()}, microseconds_{of.microseconds}, nanoseconds_(of.operations.size()) {}

  /// Right before each pass.
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
  /// The durations of the calls since `begin`, in their order.
  std::span<double const> nanoseconds() const noexcept { return nanoseconds_; }

private:
  // An operation's place in the plan is that of its time.
  inline std::size_t place_of(operation const& one) const noexcept {
    return static_cast<std::size_t>(&one - operations_);
  }

  operation const* operations_;
  std::span<std::uint64_t const> microseconds_;
  std::vector<double> nanoseconds_; // filled once at construction, so that no pass pays for its pages
  std::int64_t origin_ = 0;
  std::int64_t begin_ = 0;
};

} // namespace replay
