// How much is live, and was at most, where many threads count.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:live_meter;
import :std;

namespace gpumem::detail {

/// Requested bytes that are live. What is counted under the pool's lock is counted here at once; threads that count for
/// themselves pass on what has gathered: the sum is exact, the peak as exact as they pass on.
export class live_meter {
public:
  /// Under the pool's lock. `nearby`: what the calling thread has not passed on.
  inline void count(std::int64_t change, std::int64_t nearby) noexcept {
    auto const sum = shared_.load(std::memory_order_relaxed) + change;
    shared_.store(sum, std::memory_order_relaxed);
    if (change > 0) raise(sum + passed_on_.load(std::memory_order_relaxed) + nearby);
  }
  /// Any thread.
  void pass_on(std::int64_t change) noexcept {
    auto const sum = passed_on_.fetch_add(change, std::memory_order_relaxed) + change;
    raise(shared_.load(std::memory_order_relaxed) + sum);
  }

  std::int64_t sum() const noexcept {
    return shared_.load(std::memory_order_relaxed) + passed_on_.load(std::memory_order_relaxed);
  }
  std::size_t peak() const noexcept { return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed)); }

private:
  inline void raise(std::int64_t live) noexcept {
    auto seen = peak_.load(std::memory_order_relaxed);
    while (seen < live && !peak_.compare_exchange_weak(seen, live, std::memory_order_relaxed)) {}
  }

  std::atomic<std::int64_t> shared_{0};
  std::atomic<std::int64_t> passed_on_{0};
  std::atomic<std::int64_t> peak_{0};
};

} // namespace gpumem::detail
