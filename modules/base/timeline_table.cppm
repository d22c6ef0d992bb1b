// Tables of the streams' timelines by handle, which are read without a lock.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timeline_table;
import :cuda;
import :hash;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// A hash table of timelines that is read without a lock. A key is never removed, so a search finds every key that was
/// written. The timeline of a key can be replaced or set to null. At least half of the slots stay empty, so that
/// searches are short.
export template <class Key> class timeline_table {
public:
  /// Returns the timeline of the key; null if there is none. `key` must not be null. Any thread.
  inline stream_timeline* find(Key key) const noexcept {
    for (std::size_t i = slot_of(key);; i = (i + 1) % size) {
      auto const seen = slots_[i].key.load(std::memory_order_acquire);
      if (seen == key) return slots_[i].timeline.load(std::memory_order_acquire);
      if (!seen) return nullptr;
    }
  }

  /// Sets the timeline of the key. Returns false if the table is full. Called under the lock of the timeline_registry.
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

/// The streams that gpumem made or adopted, by handle. If the table is full, further streams are identified more
/// slowly, as all other streams are.
export inline constinit timeline_table<CUstream> owned_handles;
/// Set while a capture scope is open (the time in which a pool serves a capture from the graph's memory), and while a
/// resource is under simulator::checked. Meanwhile all timelines of the table above are null, so its find() returns
/// null, and gpumem asks the driver whether the stream captures. Only the driver knows of a capture that was begun on a
/// raw handle.
export inline constinit std::atomic<bool> owned_handles_hidden{false};
/// All streams seen, by handle. If a stream was destroyed, another stream may have its handle by now, so callers
/// compare the ids. If the table is full, the timeline_registry finds further streams.
export inline constinit timeline_table<CUstream> seen_handles;

} // namespace gpumem::detail
