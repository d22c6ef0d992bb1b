// log_ring: a ring buffer for the rows of one thread that a binary log has not written yet.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:log_ring;
import :std;
import :trace;

namespace gpumem::detail {

/// A ring buffer of log rows without a lock. At any time at most one thread may push and at most one may take. Another
/// thread may take over either part later.
export class log_ring {
public:
  static constexpr std::size_t capacity = 1024;
  static constexpr std::size_t bytes = capacity * sizeof(binary_trace_row);

  /// Adds the row. Returns false, and adds nothing, if the ring is full.
  bool push(binary_trace_row const& row) noexcept {
    auto const end = end_.load(std::memory_order_relaxed);
    if (end - seen_begin_ == capacity) {
      seen_begin_ = begin_.load(std::memory_order_acquire);
      if (end - seen_begin_ == capacity) return false;
    }
    rows_[end % capacity] = row;
    end_.store(end + 1, std::memory_order_release);
    return true;
  }

  /// Moves all rows to the end of `to`. The capacity of `to` must leave room for `bytes` more, so that nothing is
  /// allocated.
  void take(std::string& to) noexcept {
    auto const end = end_.load(std::memory_order_acquire);
    for (auto at = begin_.load(std::memory_order_relaxed); at != end;) {
      auto const here = at % capacity;
      auto const count = std::min(end - at, capacity - here); // only up to the end of the array, where the ring wraps
      to.append(reinterpret_cast<char const*>(&rows_[here]), count * sizeof(binary_trace_row));
      at += count;
    }
    begin_.store(end, std::memory_order_release);
  }

private:
  std::atomic<std::size_t> end_{0}; // number of all rows ever pushed
  std::size_t seen_begin_ = 0;      // the pushing thread's copy of begin_, which may be out of date
  std::atomic<std::size_t> begin_{0};
  std::array<binary_trace_row, capacity> rows_;
};

} // namespace gpumem::detail
