// What blocks are cut from.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk;
import :std;

namespace gpumem::detail {

export struct block;
export struct pool_shard;

/// Memory of a pool's upstream side by side; blocks are cut from it and never join beyond it.
export struct alignas(64) chunk {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::size_t live_blocks = 0; ///< not free: granted, in a thread cache, or on the way
  block* first = nullptr;      ///< by address
  block* last = nullptr;
  pool_shard* shard = nullptr; ///< whose it is; no other's while it has live blocks

  inline std::uintptr_t end() const noexcept { return base + bytes; }
};

} // namespace gpumem::detail
