// Copies a pool's memory, block by block, in pieces of a bounded size.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
#include <string>
export module gpumem:memory_walk;
import :block;
import :frees;
import :pool_parts;
import :pool_shard;
import :request_queue;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// The states of a part of a pool's memory.
export enum class memory_state : std::uint8_t {
  live,
  free,
  cached,  ///< freed, and in a thread cache
  pending, ///< freed, but a call that still runs or a later one completes the free
};

/// A block or a free range, as memory_walk copies it.
export struct copied_block {
  void* base = nullptr;
  std::size_t bytes = 0;     ///< of the whole block, rounded up, or of the free range
  std::size_t requested = 0; ///< bytes that the caller requested; 0 if free or cached
  std::uint64_t stream = 0;  ///< id of the stream for which the block was allocated; 0 for free ranges
  std::uint64_t age = 0; ///< calls under the lock of the shard since the block left its free memory; 0 for free ranges
  std::uint32_t label = 0; ///< number of its text; 0: none
  memory_state state = memory_state::free;
  bool in_use = false;        ///< free, and the host has not seen all uses complete
  bool begins_region = false; ///< the memory below is no part of the same chunk, or has no pages
};

/// A page of a pool, at one address; a page that is being moved has two.
export struct copied_page {
  void* base = nullptr;
  std::size_t bytes = 0;
  bool pinned = false;
};

/// The counts of a thread cache; the bytes are those of cached blocks.
export struct copied_cache {
  unsigned number = 0; ///< index of the thread, which threads with high indices share
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::size_t small = 0;
  std::size_t medium = 0;
  std::size_t large = 0;
};

/// A request that waits for memory.
export struct copied_request {
  std::size_t bytes = 0;
  std::uint64_t stream = 0; ///< id of its stream; that of its first block if it asks for several
  int priority = 0;
  std::uint64_t waited_ns = 0;
  std::string holder; ///< name of its scope; empty if it has none
};

/// Copies the blocks of a pool in the order of their addresses. Each call takes the lock of one shard at a time, and
/// copies a piece under it, of a bounded number of blocks. Blocks of one piece lie side by side, and are as they were
/// at one moment. Between the pieces other threads may use the pool. If a range was copied in part, and then became one
/// block with memory that was not copied yet, the rest of it counts as free. One thread at a time.
export class memory_walk {
public:
  static constexpr std::size_t usual_piece = 1000;

  /// Keeps references to both. `piece`: the most blocks that a call copies.
  memory_walk(pool_parts& parts, shard_frees& frees, std::size_t piece = usual_piece) noexcept
      : parts_{parts}, frees_{frees}, piece_{piece} {}

  /// Appends the next piece to `blocks`, which has all earlier pieces. Returns false if there was none. Throws
  /// std::bad_alloc.
  bool copy_next(std::vector<copied_block>& blocks);

private:
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  void copy_from(chunk const& parent, std::vector<copied_block>& blocks, std::size_t end);
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  block const* first_above(chunk const& parent, std::span<copied_block const> blocks) const noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  std::size_t const piece_;
  std::uintptr_t next_ = 0;   // all memory below was copied
  std::uintptr_t region_ = 0; // base of the chunk that the last call has left in the middle; 0: a region begins next
};

/// A copy of all that a pool knows of its memory.
export struct memory_copy {
  gpumem::statistics statistics; ///< read before the first piece; in a hardened pool after the last one
  std::vector<copied_block> blocks;
  std::vector<copied_page> pages;
  std::vector<copied_cache> caches;
  std::vector<copied_request> waiting;
  std::size_t pieces = 0;            ///< of the blocks; see memory_walk
  std::uint64_t calls_meanwhile = 0; ///< allocations, frees and failures from the statistics to the last piece
};

/// Copies the blocks by a memory_walk, then the rest under the locks of all shards. `before`: the statistics of the
/// pool, read just before. Throws std::bad_alloc. Any thread.
export memory_copy copy_memory(pool_parts& parts, shard_frees& frees, waiting_requests const& requests,
                               statistics const& before, std::size_t piece = memory_walk::usual_piece);

} // namespace gpumem::detail
