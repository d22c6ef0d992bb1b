// The timelines of streams by their handles, found without a lock.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timeline_table;
import :cuda;
import :hash;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// Timelines by a word: a hash that is read without a lock. An entry once written stays; its timeline can be replaced,
/// or taken out, so a probe never stops early. Half of it stays empty, so that no probe is long.
export template <class Key> class timeline_table {
public:
  /// Null: not here. `key` is not null. Any thread.
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

/// The process's: by the handles of streams that are promised to live; those beyond what it holds are identified like
/// foreign ones.
export inline constinit timeline_table<CUstream> owned_handles;
/// By the handle of every stream seen. The handle of a stream that has died may be that of another now, so that ids are
/// compared. Those beyond what it holds the registry finds.
export inline constinit timeline_table<CUstream> seen_handles;

} // namespace gpumem::detail
