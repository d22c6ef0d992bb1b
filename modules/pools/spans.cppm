// Small blocks: a few sizes, cut side by side, and kept as they are when they are freed.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:spans;
import :block;
import :size_class;
import :std;

namespace gpumem::detail {

/// Freed small blocks of the same order, by size, the last one first. They join no neighbours before `take_all`: most
/// are wanted again, and while they are apart neither their freeing nor their granting touches anything else. Quick Fit
/// (Weinstock and Wulf 1988). Guarded by the lock of the pool that keeps it.
export class spans {
public:
  inline block* last(std::size_t bytes) const noexcept { return last_[size_class::number_of_small(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// How many more of a size it takes.
  inline std::size_t room(std::size_t bytes) const noexcept {
    return most - counts_[size_class::number_of_small(bytes)];
  }
  /// False: there are enough of its size. A stream that only frees has them for nobody.
  inline bool put(block& freed) noexcept {
    auto const size = size_class::number_of_small(freed.bytes);
    if (counts_[size] >= most) return false;
    ++counts_[size];
    freed.next = last_[size];
    last_[size] = &freed;
    bytes_ += freed.bytes;
    freed.become(block_state::spare);
    return true;
  }
  /// The last of its size.
  inline void take(block& spare) noexcept {
    auto const size = size_class::number_of_small(spare.bytes);
    --counts_[size];
    last_[size] = spare.next;
    bytes_ -= spare.bytes;
    spare.become(block_state::granted);
  }
  /// All of them, in front of others that are linked by `next`.
  block* take_all(block* before) noexcept;

  template <class Visit> void visit(Visit visitor) const {
    if (empty()) return;
    for (auto const* last : last_) {
      for (; last; last = last->next) visitor(*last);
    }
  }

private:
  static constexpr std::size_t most = 64;
  std::array<block*, size_class::small_count> last_{};
  std::array<std::uint16_t, size_class::small_count> counts_{};
  std::size_t bytes_ = 0;
};

} // namespace gpumem::detail
