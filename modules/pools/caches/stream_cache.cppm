// Freed blocks of one stream that a thread keeps, by size.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_cache;
import :block;
import :size_class;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// Lists of small and medium blocks, and what was counted of the stream's frees. Guarded by the lock of its thread.
export struct stream_cache {
  stream_timeline* timeline = nullptr;
  std::uint32_t count = 0;            ///< of blocks
  std::uint32_t unrecorded_frees = 0; ///< with those of large blocks
  std::size_t unrecorded_bytes = 0;
  std::uint32_t foreign_frees = 0;               ///< frees of other streams since the last of its own
  std::uint64_t last_insert = 0;                 ///< after how many refusals of its thread
  std::array<block*, size_class::count> lists{}; ///< the newest on top

  /// The newest block of that size, or where sizes are close of one of the next two, which are a quarter larger at
  /// most; no longer kept; or null. Of random sizes that comes out of it many that a search among free ranges would
  /// have cost.
  [[gnu::always_inline]] inline block* pop_fitting(unsigned number) noexcept {
    if (lists[number]) [[likely]]
      return &pop(lists[number]);
    if (number < first_close || number + 2 >= size_class::count) return nullptr;
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
  /// The largest. There is one.
  block& pop_largest() noexcept;

private:
  static constexpr unsigned first_close = 8; // from there on two sizes more are a quarter more at most
};

} // namespace gpumem::detail
