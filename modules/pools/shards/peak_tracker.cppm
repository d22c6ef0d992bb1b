// How much is live, and was at most, where many threads count.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:peak_tracker;
import :std;

namespace gpumem::detail {

/// What one shard of a pool counts of live bytes, under its lock: those that threads keep near them too.
export struct live_count {
  std::int64_t bytes = 0;
  std::int64_t published = 0; ///< of these, what the meter knows
};

/// Requested bytes that are live, at most. Shards tell of changes of some size only, so that their threads rarely meet
/// here: the peak is exact to that size for each of them.
export class peak_tracker {
public:
  /// Under the lock of the count. `slack`: the largest change that is not told of. `nearby`: bytes that count as live
  /// and are kept near the calling thread.
  inline void count(live_count& mine, std::int64_t change, std::int64_t nearby, std::int64_t slack) noexcept {
    mine.bytes += change;
    auto const delta = mine.bytes - mine.published;
    if (delta <= slack && -delta <= slack) return;
    auto const all = publish(mine);
    if (change > 0) raise(all - nearby);
  }
  /// The same while there is no other count; nothing is told.
  inline void count_alone(live_count& mine, std::int64_t change, std::int64_t nearby) noexcept {
    mine.bytes += change;
    if (change > 0) raise(mine.bytes - nearby);
  }
  /// Under the lock of the count. What is live as far as parts have told.
  inline std::int64_t publish(live_count& mine) noexcept {
    auto const delta = mine.bytes - std::exchange(mine.published, mine.bytes);
    return published_.fetch_add(delta, std::memory_order_relaxed) + delta;
  }

  inline std::size_t peak() const noexcept { return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed)); }

private:
  inline void raise(std::int64_t live) noexcept {
    auto seen = peak_.load(std::memory_order_relaxed);
    while (seen < live && !peak_.compare_exchange_weak(seen, live, std::memory_order_relaxed)) {}
  }

  alignas(64) std::atomic<std::int64_t> published_{0}; // threads meet here: not beside what all of them read
  std::atomic<std::int64_t> peak_{0};
};

} // namespace gpumem::detail
