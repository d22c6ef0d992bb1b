// Splits blocks off the free ranges of one shard, and makes them free again.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:range_allocator;
import :block;
import :block_metadata;
import :block_table;
import :chunk;
import :free_lists;
import :free_range_set;
import :hole_list;
import :std;
import :stream_uses;

namespace gpumem::detail {

/// The blocks of one shard. Free ranges are on free lists. Holes are in a list of their own. All other blocks are in
/// the block table, which finds them by address. All functions but `find_live` need the lock of the shard. A call that
/// throws std::bad_alloc changes nothing.
export class range_allocator {
public:
  range_allocator() = default;
  range_allocator(range_allocator const&) = delete;
  range_allocator& operator=(range_allocator const&) = delete;

  /// Allocates host memory now for `blocks` more blocks and `streams` new streams. Throws std::bad_alloc.
  void reserve_metadata(std::size_t blocks, std::size_t streams) {
    metadata_.reserve(blocks);
    table_.reserve(blocks);
    lists().reserve(streams);
  }
  /// Adds a new chunk as one free block that these streams have used, and returns the block. Throws std::bad_alloc.
  block& add(chunk& parent, stream_uses const& uses);
  /// Extends a chunk at its end by free bytes that have these uses. They coalesce with the last block if that is free
  /// and the same streams have used it. Returns the block that holds them. Throws std::bad_alloc.
  block& extend(chunk& parent, std::size_t bytes, stream_uses const& uses);
  /// Takes over the chunk `parent` from another allocator. The chunk must be one free block, which is returned. Throws
  /// std::bad_alloc.
  block& adopt(chunk& parent, range_allocator& from);
  /// Removes a chunk without live blocks.
  void remove(chunk& parent) noexcept;

  /// Returns the block in the block table that starts at the address; null if there is none. Any thread may call this,
  /// but without the lock the result is certain only for the owner of the block.
  inline block* find_live(void const* pointer) const noexcept { return table_.find(pointer); }

  inline free_range_set& free_ranges() noexcept { return free_; }
  inline free_range_set const& free_ranges() const noexcept { return free_; }
  inline free_lists& lists() noexcept { return free_.lists(); }
  inline free_lists const& lists() const noexcept { return free_.lists(); }
  inline hole_list const& holes() const noexcept { return holes_; }

  /// Splits a live block of `bytes` at `offset` off a free block. The rest of the free block stays free, with the same
  /// uses. Throws std::bad_alloc.
  block& split_off(block& range, std::size_t offset, std::size_t bytes);
  /// Splits several small blocks of the same size off the start of a range. The first one becomes live and is returned;
  /// the others go to a quick list, which serves the next requests of that size. Throws std::bad_alloc.
  block& split_run(block& range, std::size_t bytes);
  /// Makes a block live that is the head of a quick list.
  inline void pop_quick(block& spare) noexcept {
    lists().of(spare.uses).quick().pop(spare);
    spare.uses.clear();
    free_bytes_ -= spare.bytes;
    ++spare.parent->live_blocks;
  }
  /// Frees a live small block, with its uses, to a quick list. Returns false, and changes nothing, if the list is full.
  inline bool push_quick(block& small) noexcept {
    if (!lists().of(small.uses).quick().push(small)) return false;
    --small.parent->live_blocks;
    free_bytes_ += small.bytes;
    return true;
  }
  /// Coalesces all blocks of the quick lists with their neighbours. Returns whether there were any.
  bool flush_quick_lists() noexcept;
  /// Makes a hole of `bytes` from the address `base` on, all of which lie in free blocks; `last` is the highest of
  /// these. Joins adjacent holes to it, and returns the whole hole. Throws std::bad_alloc.
  block& make_hole(block& last, std::uintptr_t base, std::size_t bytes);
  /// Turns `bytes` of a hole, from `offset` on, into free memory with these uses. Returns the block that holds them.
  /// The rest stays a hole. Throws std::bad_alloc.
  block& fill_hole(block& hole, std::size_t offset, std::size_t bytes, stream_uses const& uses);
  /// Shortens a chunk by the hole at its end, if there is one. A chunk that is only a hole becomes empty.
  void trim_hole(chunk& parent) noexcept;

  using coalescing = free_range_set::coalescing;
  /// Frees a live block with its uses, and coalesces it as free_range_set::coalesce() does. Returns the block that
  /// holds it. Allocates no host memory.
  block& free(block& freed, coalescing with) noexcept;

  inline std::size_t free_bytes() const noexcept { return free_bytes_; }

private:
  block& split(block& range, std::size_t offset, std::size_t bytes);
  block& split_front(block& whole, std::size_t bytes) noexcept;
  block& punch_hole(block& range, std::size_t offset, std::size_t bytes);

  block_metadata metadata_;
  block_table table_{metadata_};
  free_range_set free_{metadata_};
  hole_list holes_;
  std::size_t free_bytes_ = 0;
};

} // namespace gpumem::detail
