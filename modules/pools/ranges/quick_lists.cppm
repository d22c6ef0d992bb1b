// Quick lists: freed small blocks by size class, not yet joined with free neighbours.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:quick_lists;
import :block;
import :size_class;
import :std;
import :tuning;

namespace gpumem::detail {

/// Freed small blocks that the same streams may still use, one list for each size class, the newest block first. They
/// coalesce with their neighbours only after `pop_all`. Most of them are allocated again before that, and then neither
/// the free nor the allocation touches other blocks. This is Quick Fit (Weinstock and Wulf 1988). Guarded by the lock
/// of the shard that owns the lists.
export class quick_lists {
public:
  inline block* head(std::size_t bytes) const noexcept { return heads_[size_class::number_of_small(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// Returns how many more blocks of this size the list takes.
  inline std::size_t room(std::size_t bytes) const noexcept {
    return tuning::max_quick_blocks - counts_[size_class::number_of_small(bytes)];
  }
  /// Adds a block. Returns false if the list of its size has `max_quick_blocks`: without a bound a stream that frees
  /// and never allocates would fill the list with blocks that do not coalesce.
  inline bool push(block& freed) noexcept {
    auto const size = size_class::number_of_small(freed.bytes);
    if (counts_[size] >= tuning::max_quick_blocks) return false;
    ++counts_[size];
    freed.next = heads_[size];
    heads_[size] = &freed;
    bytes_ += freed.bytes;
    freed.set_state(block_state::quick_listed);
    return true;
  }
  /// Removes a block, the newest of its size, and marks it as allocated.
  inline void pop(block& listed) noexcept {
    auto const size = size_class::number_of_small(listed.bytes);
    --counts_[size];
    heads_[size] = listed.next;
    bytes_ -= listed.bytes;
    listed.set_state(block_state::allocated);
  }
  /// Removes all blocks, links them by `next`, and links the last one to `before`. Returns the first one.
  block* pop_all(block* before) noexcept;

  template <class Visit> void visit(Visit visitor) const {
    if (empty()) return;
    for (auto const* head : heads_) {
      for (; head; head = head->next) visitor(*head);
    }
  }

private:
  std::array<block*, size_class::small_count> heads_{};
  std::array<std::uint16_t, size_class::small_count> counts_{};
  std::size_t bytes_ = 0;
};

} // namespace gpumem::detail
