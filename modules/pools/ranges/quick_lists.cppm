// Quick lists: freed small blocks by size class, not yet joined with free neighbours.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:quick_lists;
import :block;
import :size_class;
import :std;
import :tuning;

namespace gpumem::detail {

/// Freed small blocks whose reuse waits for the same streams, by size class, the newest first. They coalesce only after
/// `pop_all`: most are allocated again soon, and then neither the free nor the allocation touches other blocks. Quick
/// Fit (Weinstock and Wulf 1988). Guarded by the lock of the shard, the part of a pool that has the blocks.
export class quick_lists {
public:
  inline block* head(std::size_t bytes) const noexcept { return heads_[size_class::number_of_small(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// Returns the number of blocks of this size that still fit.
  inline std::size_t room(std::size_t bytes) const noexcept {
    return tuning::max_quick_blocks - counts_[size_class::number_of_small(bytes)];
  }
  /// Adds a block. Returns false if the list of its size is full. The lists are short, since a stream that only frees
  /// gets no block back from them.
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
  /// Removes `listed`, which must be the newest block of its size here, and marks it as allocated.
  inline void pop(block& listed) noexcept {
    auto const size = size_class::number_of_small(listed.bytes);
    --counts_[size];
    heads_[size] = listed.next;
    bytes_ -= listed.bytes;
    listed.set_state(block_state::allocated);
  }
  /// Removes all blocks and links them by `next` in front of `before`. Returns the first.
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
