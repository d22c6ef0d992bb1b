// The record of a block, and its states.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block;
import :relaxed_atomic;
import :std;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// Sizes and addresses of all blocks are multiples of this many bytes.
export inline constexpr std::size_t granule = 256;

export struct chunk;
export class free_list;

/// The state of a block. Only the holder of its shard's lock makes a block free, or allocates a free one. Changes
/// between `allocated` and `cached` need only the lock of a thread cache.
export enum class block_state : std::uint8_t {
  free,
  allocated,
  quick_listed, ///< small and free, on a quick list
  cached,       ///< freed, and in a thread cache
  evicted,      ///< removed from a thread cache: the block is still to be made free
  remote_freed, ///< in a remote free
  deferred,     ///< freed by a stream that is capturing a graph: the block is made free after the capture
  hole,         ///< its pages are unmapped
};

/// The record of a block: a part of a chunk, all of it in one state. Allocations and frees touch mostly the first two
/// cache lines of a record; processors fetch these two together.
export struct alignas(128) block {
  relaxed_atomic<std::uintptr_t> base; // atomic: searches for other blocks read it without a lock
  std::size_t bytes = 0;
  block* lower = nullptr; ///< neighbours in the chunk, in any state
  block* upper = nullptr;
  block* next = nullptr;                 ///< free: next block in its size bin; otherwise next in the list that holds it
  block** bin_link = nullptr;            ///< free: address of the pointer to this block that its size bin holds
  relaxed_atomic<std::size_t> requested; ///< bytes that its last allocation asked for
  relaxed_atomic<block_state> state_ = block_state::free;
  relaxed_atomic<std::uint8_t>
      class_number; ///< live or cached: number of its size class; size_class::count if it has none
  std::uint16_t bin = 0;
  std::uint32_t table_slot = 0; ///< index of its entry in the block table, which finds blocks by address

  chunk* parent = nullptr;
  free_list* list = nullptr; ///< while free
  block* older = nullptr;    ///< free: neighbours on the free list, by age of their uses; hole: on the list of holes
  block* newer = nullptr;
  relaxed_atomic<stream_timeline*>
      stream;       ///< the stream that the block was allocated on; deferred: the stream that freed it
  stream_uses uses; ///< free or cached: uses after which it may be reused; live: uses that record_use() has declared

  block* pair_prev = nullptr; ///< links of the list free_pairs, if this block and its upper neighbour are free
  block* pair_next = nullptr;
  bool was_ready = false; ///< live and granted to a request that waits: all its earlier uses were complete then

  inline std::uintptr_t end() const noexcept { return base + bytes; }
  inline void* pointer() const noexcept { return reinterpret_cast<void*>(std::uintptr_t{base}); }
  inline block_state state() const noexcept { return state_; }
  inline void set_state(block_state next_state) noexcept { state_ = next_state; }
  inline bool is_free() const noexcept { return state() == block_state::free; }
  /// Asks the processor to fetch the records of both neighbours.
  inline void prefetch_neighbours() const noexcept {
    __builtin_prefetch(lower, 1);
    __builtin_prefetch(upper, 1);
  }
  inline bool is_live() const noexcept { return state() == block_state::allocated; }
};

static_assert(sizeof(block) == 256);

/// Returns whether `bytes` bytes with this alignment fit into the block; sets `offset` to their place in it.
export inline bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept {
  offset = (0 - range.base) & (alignment - 1);
  return offset <= range.bytes && bytes <= range.bytes - offset;
}

} // namespace gpumem::detail
