// The holes of a shard.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:hole_list;
import :block;
import :std;

namespace gpumem::detail {

/// A list of all holes, linked by the members `older` and `newer` of `block`. Guarded by the lock of the shard that
/// owns the list.
export class hole_list {
public:
  /// Marks a block, which is on no other list, as a hole and adds it.
  void insert(block& made) noexcept;
  /// Takes a hole off the list. The caller sets the block's new state.
  void remove(block& hole) noexcept;
  /// Returns the hole that holds the address. There must be one. Takes time in proportion to the number of holes.
  block& at(std::uintptr_t address) const noexcept;
  /// Visits every hole, in no order.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const* each = first_; each; each = each->newer) visitor(*each);
  }

private:
  block* first_ = nullptr;
};

} // namespace gpumem::detail
