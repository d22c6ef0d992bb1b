// The peak of the live bytes of a pool with many shards.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:peak_tracker;
import :std;

namespace gpumem::detail {

/// The live bytes of one shard, guarded by its lock. Blocks in thread caches still count.
export struct live_count {
  std::int64_t bytes = 0;
  std::int64_t published = 0; ///< the part of `bytes` that the peak_tracker knows
};

/// Tracks the peak of the live bytes that callers requested. Each shard adds its changes to the common count only when
/// they exceed `slack`, so that threads rarely write to that count at the same time. So the peak is exact to `slack`
/// per shard.
export class peak_tracker {
public:
  /// Counts a change. If the shard's changes that the common count does not include exceed `slack`, publishes them:
  /// adds them to the common count. The caller holds the lock of the count's shard. `nearby`: bytes that count as live
  /// although they are free, in the calling thread's cache.
  inline void count(live_count& mine, std::int64_t change, std::int64_t nearby, std::int64_t slack) noexcept {
    mine.bytes += change;
    auto const delta = mine.bytes - mine.published;
    if (delta <= slack && -delta <= slack) return;
    auto const all = publish(mine);
    if (change > 0) raise(all - nearby);
  }
  /// Counts a change while the pool has only one shard; publishes nothing.
  inline void count_alone(live_count& mine, std::int64_t change, std::int64_t nearby) noexcept {
    mine.bytes += change;
    if (change > 0) raise(mine.bytes - nearby);
  }
  /// Publishes the changes of one shard's count. The caller holds the lock of that shard. Returns the live bytes that
  /// all shards have published.
  inline std::int64_t publish(live_count& mine) noexcept {
    auto const delta = mine.bytes - std::exchange(mine.published, mine.bytes);
    return published_.fetch_add(delta, std::memory_order_relaxed) + delta;
  }

  /// Sets the peak to the live bytes. The caller holds the locks of all shards.
  inline void reset(std::int64_t live) noexcept { peak_.store(live, std::memory_order_relaxed); }

  inline std::size_t peak() const noexcept { return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed)); }

private:
  inline void raise(std::int64_t live) noexcept {
    auto seen = peak_.load(std::memory_order_relaxed);
    while (seen < live && !peak_.compare_exchange_weak(seen, live, std::memory_order_relaxed)) {}
  }

  alignas(64) std::atomic<std::int64_t> published_{0}; // all threads write it, so it starts a new cache line
  std::atomic<std::int64_t> peak_{0};
};

} // namespace gpumem::detail
