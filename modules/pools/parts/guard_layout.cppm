// The guards that a hardened pool adds to each block.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:guard_layout;
import :block;
import :pool_options;
import :std;

namespace gpumem::detail {

/// The size of the guards around each block, and the number of bytes of a block that are poisoned and checked. Without
/// hardening both are 0.
export struct guard_layout {
  std::size_t guard = 0;  ///< a multiple of `granule`, the unit of block sizes
  std::size_t poison = 0; ///< blocks up to this size are poisoned in full, larger blocks for half this size at each end

  /// Returns the layout that the options ask for.
  static guard_layout of(hardening_options const& asked) noexcept {
    if (!asked.enabled) return {};
    return {(asked.guard + granule - 1) / granule * granule, asked.poison};
  }
  /// Returns the number of bytes before the user's bytes in the block that the engine allocates. The engine is the part
  /// of the pool that allocates and frees blocks.
  inline std::size_t front(std::size_t alignment) const noexcept {
    auto const step = std::max(alignment, granule);
    return (guard + step - 1) & ~(step - 1);
  }
  /// Returns the size of the block to allocate from the engine. Does not overflow for any size that the pool accepts.
  inline std::size_t total(std::size_t bytes, std::size_t alignment) const noexcept {
    return front(alignment) + (bytes + granule - 1) / granule * granule + guard;
  }
};

} // namespace gpumem::detail
