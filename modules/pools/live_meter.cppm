// How much is live, and was at most, where many threads count.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:live_meter;
import :std;

namespace gpumem::detail {

/// What one shard of a pool counts of live bytes, under its lock: those that threads keep near them too.
export struct live_part {
  std::int64_t bytes = 0;
  std::int64_t told = 0; ///< of these, what the meter knows
};

/// Requested bytes that are live, at most. Shards tell of changes of some size only, so that their threads rarely meet
/// here: the peak is exact to that size for each of them.
export class live_meter {
public:
  /// Under the lock of the part. `slack`: the largest change that is not told of. `nearby`: bytes that count as live
  /// and are kept near the calling thread.
  inline void count(live_part& part, std::int64_t change, std::int64_t nearby, std::int64_t slack) noexcept {
    part.bytes += change;
    auto const news = part.bytes - part.told;
    if (news <= slack && -news <= slack) return;
    auto const all = tell(part);
    if (change > 0) raise(all - nearby);
  }
  /// The same while there is no other part; nothing is told.
  inline void count_alone(live_part& part, std::int64_t change, std::int64_t nearby) noexcept {
    part.bytes += change;
    if (change > 0) raise(part.bytes - nearby);
  }
  /// Under the lock of the part. What is live as far as parts have told.
  inline std::int64_t tell(live_part& part) noexcept {
    auto const news = part.bytes - std::exchange(part.told, part.bytes);
    return told_.fetch_add(news, std::memory_order_relaxed) + news;
  }

  inline std::size_t peak() const noexcept { return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed)); }

private:
  inline void raise(std::int64_t live) noexcept {
    auto seen = peak_.load(std::memory_order_relaxed);
    while (seen < live && !peak_.compare_exchange_weak(seen, live, std::memory_order_relaxed)) {}
  }

  alignas(64) std::atomic<std::int64_t> told_{0}; // threads meet here: not beside what all of them read
  std::atomic<std::int64_t> peak_{0};
};

} // namespace gpumem::detail
