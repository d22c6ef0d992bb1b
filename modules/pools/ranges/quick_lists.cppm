// Small blocks: a few sizes, cut side by side, and kept as they are when they are freed.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:quick_lists;
import :block;
import :size_class;
import :std;

namespace gpumem::detail {

/// Freed small blocks of the same order, by size, the last one first. They join no neighbours before `pop_all`: most
/// are wanted again, and while they are apart neither their freeing nor their granting touches anything else. Quick Fit
/// (Weinstock and Wulf 1988). Guarded by the lock of the pool that keeps it.
export class quick_lists {
public:
  inline block* head(std::size_t bytes) const noexcept { return heads_[size_class::number_of_small(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// How many more of a size it takes.
  inline std::size_t room(std::size_t bytes) const noexcept {
    return max_per_class - counts_[size_class::number_of_small(bytes)];
  }
  /// False: there are enough of its size. A stream that only frees has them for nobody.
  inline bool push(block& freed) noexcept {
    auto const size = size_class::number_of_small(freed.bytes);
    if (counts_[size] >= max_per_class) return false;
    ++counts_[size];
    freed.next = heads_[size];
    heads_[size] = &freed;
    bytes_ += freed.bytes;
    freed.set_state(block_state::quick_listed);
    return true;
  }
  /// The last of its size.
  inline void pop(block& listed) noexcept {
    auto const size = size_class::number_of_small(listed.bytes);
    --counts_[size];
    heads_[size] = listed.next;
    bytes_ -= listed.bytes;
    listed.set_state(block_state::allocated);
  }
  /// All of them, in front of others that are linked by `next`.
  block* pop_all(block* before) noexcept;

  template <class Visit> void visit(Visit visitor) const {
    if (empty()) return;
    for (auto const* head : heads_) {
      for (; head; head = head->next) visitor(*head);
    }
  }

private:
  static constexpr std::size_t max_per_class = 64;
  std::array<block*, size_class::small_count> heads_{};
  std::array<std::uint16_t, size_class::small_count> counts_{};
  std::size_t bytes_ = 0;
};

} // namespace gpumem::detail
