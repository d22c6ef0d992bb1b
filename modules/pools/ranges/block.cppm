// A piece of a pool's memory.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block;
import :chunk;
import :relaxed_atomic;
import :std;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// What all of a pool's blocks are multiples of, and aligned to; bytes.
export inline constexpr std::size_t granule = 256;

export class free_list;

/// What becomes of a block. Only the holder of the pool's lock makes it free, or takes it from there; between granted
/// and cached it goes in whatever thread has it.
export enum class block_state : std::uint8_t {
  free,
  allocated,
  quick_listed, ///< small and free, and kept apart from its neighbours
  cached,       ///< freed, and in a thread cache
  evicted,      ///< no longer kept there, and on its way to be free
  remote_freed, ///< freed while its shard's lock was taken: the lock's next holder makes it free
  deferred,     ///< freed by a stream that is capturing a graph: the free is still to be done
  hole,         ///< its memory has left
};

/// Memory that is granted or free as one. The first two cache lines, a pair that processors fetch together, are what
/// allocations and frees touch.
export struct alignas(128) block {
  relaxed_atomic<std::uintptr_t> base; // looked at by who searches for another
  std::size_t bytes = 0;
  block* lower = nullptr; ///< neighbours in the chunk, of whatever state
  block* upper = nullptr;
  block* next = nullptr;                 ///< free: in its bin; else in the list of whoever keeps it
  block** bin_link = nullptr;            ///< free: what points at it in its bin
  relaxed_atomic<std::size_t> requested; ///< while granted; bytes
  relaxed_atomic<block_state> state_ = block_state::free;
  relaxed_atomic<std::uint8_t> class_number; ///< of thread caches, for its size if that has a number; while granted
  std::uint16_t bin = 0;
  std::uint32_t table_slot = 0; ///< where in the table of blocks, while it is there

  chunk* parent = nullptr;
  free_list* list = nullptr; ///< while free
  block* older = nullptr;    ///< while free, neighbours on the free list in order of free; of holes, in their list
  block* newer = nullptr;
  relaxed_atomic<stream_timeline*> stream; ///< the stream that it was given to; deferred, the stream that freed it
  stream_uses uses; ///< free or cached: what must be over before reuse; granted: uses recorded so far

  block* pair_prev = nullptr; ///< free and with a free neighbour above: the list of these
  block* pair_next = nullptr;

  inline std::uintptr_t end() const noexcept { return base + bytes; }
  inline void* pointer() const noexcept { return reinterpret_cast<void*>(std::uintptr_t{base}); }
  inline block_state state() const noexcept { return state_; }
  inline void set_state(block_state next_state) noexcept { state_ = next_state; }
  inline bool is_free() const noexcept { return state() == block_state::free; }
  /// A hint to the processor.
  inline void prefetch_neighbours() const noexcept {
    __builtin_prefetch(lower, 1);
    __builtin_prefetch(upper, 1);
  }
  inline bool is_live() const noexcept { return state() == block_state::allocated; }
};

static_assert(sizeof(block) == 256);

/// Whether `bytes` bytes so aligned lie in the block; `offset` is then where.
export inline bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept {
  offset = (0 - range.base) & (alignment - 1);
  return offset <= range.bytes && bytes <= range.bytes - offset;
}
/// The highest offset of bytes that fit so.
export inline std::size_t last_fit(block const& range, std::size_t bytes, std::size_t alignment) noexcept {
  return ((range.end() - bytes) & ~(alignment - 1)) - range.base;
}

} // namespace gpumem::detail
