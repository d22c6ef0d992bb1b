// The tables of timelines by stream handle, which are read without a lock.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timeline_table;
import :cuda;
import :hash;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// A hash table of timelines that is read without a lock. A key once written stays, so a probe never stops early; its
/// timeline can be replaced or set to null. At least half of the slots stay empty, so that probes are short.
export template <class Key> class timeline_table {
public:
  /// Returns the timeline; null if there is none. `key` must not be null. Any thread.
  inline stream_timeline* find(Key key) const noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % size) {
      auto const seen = slots_[i].key.load(std::memory_order_acquire);
      if (seen == key) return slots_[i].timeline.load(std::memory_order_acquire);
      if (!seen) return nullptr;
    }
  }

  /// False when full. Under the registry's lock.
  inline bool put(Key key, stream_timeline* timeline) noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % size) {
      auto const seen = slots_[i].key.load(std::memory_order_relaxed);
      if (seen && seen != key) continue;
      if (!seen && used_ == size / 2) return false;
      if (!seen) ++used_;
      slots_[i].timeline.store(timeline, std::memory_order_release);
      slots_[i].key.store(key, std::memory_order_release);
      return true;
    }
  }

private:
  static constexpr unsigned size_log2 = 13;
  static constexpr std::size_t size = std::size_t{1} << size_log2;
  static inline std::size_t slot_of(Key key) noexcept {
    return fibonacci_hash(std::bit_cast<std::uint64_t>(key)) >> (64 - size_log2);
  }
  struct slot {
    std::atomic<Key> key{};
    std::atomic<stream_timeline*> timeline{nullptr};
  };
  std::array<slot, size> slots_{};
  std::size_t used_ = 0;
};

/// The own and adopted streams of the process, by handle. Streams that do not fit are identified like foreign ones.
export inline constinit timeline_table<CUstream> owned_handles;
/// Set while a capture scope is open. The table above then has no timelines, since a capture that was begun on a raw
/// handle is seen only by a call that asks the driver.
export inline constinit std::atomic<bool> owned_handles_hidden{false};
/// All streams seen, by handle. The handle of a dead stream may belong to another stream by now, so callers compare
/// ids. The registry finds the streams that do not fit.
export inline constinit timeline_table<CUstream> seen_handles;

} // namespace gpumem::detail
