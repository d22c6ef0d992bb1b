// The measured time that it takes to make or to move one page.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:page_price;
import :std;
import :time_budget;

namespace gpumem::detail {

/// The median of the time per page of the last `kept` growths and moves. It begins as `tuning::page_cost`, which counts
/// as one of them. A median, because a thread that is preempted during a growth measures far too much time. One thread
/// at a time: the owner's lock guards it.
export class page_price {
public:
  using nanoseconds = time_budget::nanoseconds;
  static constexpr std::size_t kept = 9;
  static constexpr nanoseconds least{1'000}; ///< the smallest price: a clock may show no time at all

  page_price() noexcept;
  inline nanoseconds median() const noexcept { return median_; }
  /// Adds a growth or a move of `pages` pages that took the time `spent`. Does nothing if there are no pages.
  void add(nanoseconds spent, std::size_t pages) noexcept;

private:
  std::array<nanoseconds, kept> recent_; // a ring; the first `count_` are set
  std::size_t count_ = 1;
  nanoseconds median_;
};

} // namespace gpumem::detail
