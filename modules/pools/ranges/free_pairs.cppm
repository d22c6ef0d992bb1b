// The pairs of free neighbours in the chunks of a shard: two free blocks that adjoin but have not coalesced.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_pairs;
import :block;
import :std;

namespace gpumem::detail {

/// A list of the lower blocks of all pairs, linked by the members `pair_prev` and `pair_next` of `block`. By this list
/// all neighbours that might coalesce are found without a visit of every block. Guarded by the lock of the shard that
/// owns the list.
export class free_pairs {
public:
  /// Returns the lower block of the pair that was added last; null if there is no pair.
  inline block* first() const noexcept { return first_; }

  /// Adds the pair that a free block makes with its upper neighbour, if that is free too.
  inline void add_with_upper(block& one) noexcept {
    if (one.upper && one.upper->is_free()) link(one);
  }
  /// Adds the pair that a free block makes with its lower neighbour, if that is free too.
  inline void add_with_lower(block& one) noexcept {
    if (one.lower && one.lower->is_free()) link(*one.lower);
  }
  /// Removes the pair of a block and its upper neighbour, if both are free. Called before either of them changes.
  inline void remove_with_upper(block& one) noexcept {
    if (is_pair(one)) unlink(one);
  }
  /// Removes the pair of a block and its lower neighbour, if both are free. Called before either of them changes.
  inline void remove_with_lower(block& one) noexcept {
    if (one.lower && is_pair(*one.lower)) unlink(*one.lower);
  }

private:
  inline bool is_pair(block const& lower) const noexcept {
    return first_ && lower.is_free() && lower.upper && lower.upper->is_free();
  }
  inline void link(block& lower) noexcept {
    lower.pair_prev = nullptr;
    lower.pair_next = first_;
    if (first_) first_->pair_prev = &lower;
    first_ = &lower;
  }
  inline void unlink(block& lower) noexcept {
    (lower.pair_prev ? lower.pair_prev->pair_next : first_) = lower.pair_next;
    if (lower.pair_next) lower.pair_next->pair_prev = lower.pair_prev;
  }

  block* first_ = nullptr;
};

} // namespace gpumem::detail
