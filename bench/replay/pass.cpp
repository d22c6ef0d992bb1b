// Merges the operations of several threads by their times.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>
module replay:pass.impl;
import :pass;
import :plan;

namespace replay {

namespace detail {

// One thread's way through the plan.
class cursor {
public:
  cursor(plan const& of, std::size_t stride, pass_notes const& notes)
      : of_{of}, stride_{stride}, notes_{notes}, held_(of.blocks) {
    look_up();
  }

  bool done() const noexcept { return place_ == of_.operations.size(); }
  /// Returns the time of the next operation.
  double time() const noexcept { return time_; }

  /// Makes the next operation. Returns the bytes that it adds to the live ones.
  std::int64_t step() {
    operation const& next = of_.operations[place_];
    bool const failed = failures_ < notes_.failed.size() && notes_.failed[failures_] == place_;
    failures_ += failed ? 1 : 0;
    bool const counts = next.allocates ? !failed : held_[next.block]; // the free of a failed allocation frees nothing
    held_[next.block] = next.allocates && !failed;
    ++place_;
    look_up();
    auto const bytes = static_cast<std::int64_t>(next.bytes);
    return !counts ? 0 : next.allocates ? bytes : -bytes;
  }

private:
  double noted(std::size_t index) const noexcept {
    return index < notes_.times.size() ? static_cast<double>(notes_.times[index]) : 0;
  }
  // Sets the time of the next operation, which is never before the one that precedes it.
  void look_up() {
    double const from = noted(place_ / stride_);
    double const to = std::max(noted(place_ / stride_ + 1), from);
    double const share = static_cast<double>(place_ % stride_) / static_cast<double>(stride_);
    time_ = std::max(time_, from + (to - from) * share);
  }

  plan const& of_;
  std::size_t stride_;
  pass_notes const& notes_;
  std::vector<bool> held_; // by block: whether it is live
  std::size_t place_ = 0;
  std::size_t failures_ = 0; // of those in the notes that have been passed
  double time_ = 0;
};

} // namespace detail

std::uint64_t live_at_once(plan const& of, std::size_t stride, std::span<pass_notes const> threads) {
  std::vector<detail::cursor> cursors;
  for (pass_notes const& each : threads) cursors.emplace_back(of, stride, each);
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (;;) {
    detail::cursor* first = nullptr;
    for (detail::cursor& each : cursors) {
      if (!each.done() && (!first || each.time() < first->time())) first = &each;
    }
    if (!first) return static_cast<std::uint64_t>(peak);
    live += first->step();
    peak = std::max(peak, live);
  }
}

void live_counter::end_pass() {
  if (notes_.empty()) return;
  peak_ = std::max(peak_, live_at_once(of_, mask_ + 1, notes_));
  for (pass_notes& each : notes_) {
    std::ranges::fill(each.times, 0);
    each.failed.clear();
  }
}

} // namespace replay
