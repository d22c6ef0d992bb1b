// A chunk: contiguous memory from a pool's upstream, and the list of its blocks.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk;
import :block;
import :std;

namespace gpumem::detail {

export struct pool_shard;
export struct address_range;

/// Contiguous memory of a pool's upstream. Its blocks adjoin without a gap; each is linked to its neighbours by `lower`
/// and `upper`. Blocks never coalesce across the ends of a chunk.
export struct alignas(64) chunk {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::size_t live_blocks = 0; ///< blocks that are allocated, in a thread cache, or still to be freed
  block* first = nullptr;      ///< the lowest block
  block* last = nullptr;
  pool_shard* shard = nullptr; ///< the part of the pool that owns it; does not change while the chunk has live blocks
  address_range* addresses = nullptr; ///< where its pages are mapped; null if it is no pages
  std::size_t pins = 0;               ///< pins of a chunk that serves as pages; a pinned one stays

  inline std::uintptr_t end() const noexcept { return base + bytes; }

  // always_inline: each allocation or free that no thread cache serves runs this code.
  /// Links a block between `upper`, a block of this chunk, and the lower neighbour of `upper`.
  [[gnu::always_inline]] inline void link_below(block& one, block& upper) noexcept {
    one.parent = this;
    one.lower = upper.lower;
    one.upper = &upper;
    (one.lower ? one.lower->upper : first) = &one;
    upper.lower = &one;
  }
  /// Links a block between `lower`, a block of this chunk, and the upper neighbour of `lower`.
  inline void link_above(block& one, block& lower) noexcept {
    one.parent = this;
    one.lower = &lower;
    one.upper = lower.upper;
    (one.upper ? one.upper->lower : last) = &one;
    lower.upper = &one;
  }
  /// Takes a block of this chunk out of the list: makes its neighbours neighbours of each other. Returns the block.
  [[gnu::always_inline]] inline block& unlink(block& joined) noexcept {
    (joined.lower ? joined.lower->upper : first) = joined.upper;
    (joined.upper ? joined.upper->lower : last) = joined.lower;
    return joined;
  }

  /// Visits every block in order of address.
  template <class Visit> void visit(Visit visitor) const {
    for (auto* each = first; each; each = each->upper) visitor(*each);
  }
  /// Returns the block that holds the address; null if the address is above the chunk. The address must not be below
  /// the chunk. Takes time in proportion to the number of blocks.
  block* find_containing(void const* pointer) const noexcept;
  /// Returns the bytes of the largest run of adjacent free blocks, whether or not streams still use them. Takes time in
  /// proportion to the number of blocks.
  std::size_t largest_run() const noexcept;
};

} // namespace gpumem::detail
