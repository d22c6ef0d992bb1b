// The stream cache: the small and medium blocks of one stream in a thread cache, by size class.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_cache;
import :block;
import :size_class;
import :std;
import :stream_timeline;
import :tuning;

namespace gpumem::detail {

/// Lists of small and medium blocks, and counts of the stream's frees. A timeline is the library's record of one
/// stream. Guarded by the lock of its thread cache.
export struct stream_cache {
  stream_timeline* timeline = nullptr;
  std::uint32_t count = 0;            ///< number of blocks
  std::uint32_t unrecorded_frees = 0; ///< frees of any size since the counts were last added to the timeline's
  std::size_t unrecorded_bytes = 0;
  /// Frees of other streams since the last insert. Each of them wanted this cache, and found it taken.
  std::uint32_t foreign_frees = 0;
  std::uint64_t last_insert = 0;                 ///< the thread cache's count `over_budget` at the last insert
  std::array<block*, size_class::count> lists{}; ///< by class number; the newest first

  /// Removes and returns the newest block of this class; null if there is none. From class tuning::first_close_class
  /// on, also tries the next two classes, which are at most a quarter larger: for random sizes this saves many searches
  /// of free ranges.
  [[gnu::always_inline]] inline block* pop_fitting(unsigned number) noexcept {
    if (lists[number]) [[likely]]
      return &pop(lists[number]);
    if (number < tuning::first_close_class || number + 2 >= size_class::count) return nullptr;
    if (auto& next = lists[number + 1]) return &pop(next);
    auto& after = lists[number + 2];
    return after ? &pop(after) : nullptr;
  }
  inline void push(block& freed) noexcept {
    auto& to = lists[freed.class_number];
    freed.next = to;
    to = &freed;
    ++count;
  }
  inline block& pop(block*& from) noexcept {
    auto& found = *from;
    from = found.next;
    --count;
    return found;
  }
  /// Removes and returns a block of the largest class. The cache must not be empty.
  block& pop_largest() noexcept;
};

} // namespace gpumem::detail
