// The record of a chunk: memory that a pool has from its upstream, side by side.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk;
import :std;

namespace gpumem::detail {

export struct block;
export struct pool_shard;

/// Contiguous memory of a pool's upstream, the resource from which the pool gets its memory. Blocks are split off it,
/// and never coalesce across its ends.
export struct alignas(64) chunk {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::size_t live_blocks = 0; ///< blocks that are allocated, in a thread cache, or still to be freed
  block* first = nullptr;      ///< the lowest block
  block* last = nullptr;
  pool_shard* shard = nullptr; ///< the part of the pool that has the chunk; does not change while there are live blocks

  inline std::uintptr_t end() const noexcept { return base + bytes; }
};

} // namespace gpumem::detail
