// The range allocator: splits blocks off the free ranges of a shard, and coalesces blocks when they are freed. A shard
// is a part of a pool with a lock of its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:range_allocator;
import :block;
import :block_metadata;
import :block_table;
import :chunk;
import :free_lists;
import :std;
import :stream_uses;
import :tuning;

namespace gpumem::detail {

/// The blocks of one shard, linked to their neighbours. Free ranges are on free lists. Other blocks are in the block
/// table, but for holes: address ranges of a chunk whose pages are unmapped. The lock of the shard guards everything
/// but `find_live`. A call that throws std::bad_alloc changes nothing.
export class range_allocator {
public:
  range_allocator() = default;
  range_allocator(range_allocator const&) = delete;
  range_allocator& operator=(range_allocator const&) = delete;

  /// Allocates host memory now for `blocks` more blocks and `streams` new streams. Throws std::bad_alloc.
  void reserve_metadata(std::size_t blocks, std::size_t streams) {
    metadata_.reserve(blocks);
    table_.reserve(blocks);
    lists_.reserve(streams);
  }
  /// Adds a new chunk as one free block with these uses, and returns the block. Throws std::bad_alloc.
  block& add(chunk& parent, stream_uses const& uses);
  /// Extends a chunk at its end by `bytes` free bytes. They coalesce with the chunk's last block if that is free and
  /// waits for the same streams. Returns the block that holds the new bytes. Throws std::bad_alloc.
  block& extend(chunk& parent, std::size_t bytes, stream_uses const& uses);
  /// Takes over the chunk `parent` from another allocator. The chunk must be one free block, which is returned. Throws
  /// std::bad_alloc.
  block& adopt(chunk& parent, range_allocator& from);
  /// Removes a chunk without live blocks.
  void remove(chunk& parent) noexcept;

  /// Returns the block that holds the address; takes time in proportion to the blocks of the chunk.
  static block* find_containing(chunk const& parent, void const* pointer) noexcept;
  /// Returns the block that starts at the address and is not a free range; null if there is none. Without the lock the
  /// result is certain only for the owner of the block.
  inline block* find_live(void const* pointer) const noexcept { return table_.find(pointer); }

  inline free_lists& lists() noexcept { return lists_; }
  inline free_lists const& lists() const noexcept { return lists_; }

  /// Splits a live block of `bytes` at `offset` off a free block; the rest stays free, with the same uses. Throws
  /// std::bad_alloc.
  block& split_off(block& range, std::size_t offset, std::size_t bytes);
  /// Splits a live small block off the start of a range. Also splits off more blocks of its size after it. They go to a
  /// quick list, which holds free blocks that are not coalesced. Throws std::bad_alloc.
  block& split_run(block& range, std::size_t bytes);
  /// Makes `spare`, the newest block on its quick list, a live block.
  inline void pop_quick(block& spare) noexcept {
    lists_.of(spare.uses).quick().pop(spare);
    spare.uses.clear();
    free_bytes_ -= spare.bytes;
    ++spare.parent->live_blocks;
  }
  /// Frees a live small block to a quick list, with its uses. Returns false, and changes nothing, if the list is full.
  inline bool push_quick(block& small) noexcept {
    if (!lists_.of(small.uses).quick().push(small)) return false;
    --small.parent->live_blocks;
    free_bytes_ += small.bytes;
    return true;
  }
  /// Coalesces all blocks of the quick lists with their neighbours. Returns whether there were any.
  bool flush_quick_lists() noexcept;
  /// Turns the `bytes` from the address `base` on into a hole. They lie in neighbouring free blocks, the highest of
  /// which is `last`. Returns the hole, which adjacent holes have joined. Throws std::bad_alloc.
  block& make_hole(block& last, std::uintptr_t base, std::size_t bytes);
  /// Makes `bytes` of a hole, from `offset` on, free memory with these uses. Returns the free block that holds the
  /// bytes. Throws std::bad_alloc.
  block& fill_hole(block& hole, std::size_t offset, std::size_t bytes, stream_uses const& uses);
  /// Shortens a chunk by the hole at its end, if there is one. A chunk that is only a hole becomes empty.
  void trim_hole(chunk& parent) noexcept;
  /// Returns the hole that holds the address; takes time in proportion to the number of holes.
  block& hole_at(std::uintptr_t address) noexcept;
  /// Visits every hole.
  template <class Visit> void visit_holes(Visit visitor) const {
    for (auto const* each = holes_; each; each = each->newer) visitor(*each);
  }

  /// Which free neighbours a freed block coalesces with. `same_streams`: those that wait for the same streams.
  /// `unused`: also those where one of the two blocks is ready (used by no stream) and not much larger than the other.
  /// `any`: all.
  enum class coalescing : std::uint8_t { same_streams, unused, any };
  /// Frees a live block with its uses, and coalesces it with the neighbours that `with` names. Leaves out a neighbour
  /// if the joined block would have uses on more than four streams. Returns the free block that holds the memory.
  /// Allocates no host memory.
  block& free(block& freed, coalescing with) noexcept;
  /// Drops all uses of a free block, which the host has seen complete. The block is then ready, and coalesces with
  /// ready neighbours. Returns the free block that holds the memory.
  block& mark_complete(block& range) noexcept;
  /// Drops the complete uses of a free block, and coalesces it with neighbours that wait for the same streams.
  void prune(block& range) noexcept;
  /// Joins a free block with the free one above it. Returns false, and changes nothing, if both together have uses on
  /// more than four streams.
  bool merge(block& lower) noexcept;

  /// Joins each two free neighbours if `may(block)` returns true for both of them.
  template <class May> void coalesce_all(May may) {
    for (auto* at = pairs_; at;) {
      auto* next = at->pair_next;
      while (at->upper && at->upper->is_free() && may(*at) && may(*at->upper)) {
        if (next == at->upper) next = next->pair_next; // merge() erases that block
        if (!merge(*at)) break;
      }
      at = next;
    }
  }

  /// Visits every block of a chunk in order of address.
  template <class Visit> static void visit(chunk const& parent, Visit visitor) {
    for (auto* each = parent.first; each; each = each->upper) visitor(*each);
  }

  inline std::uint64_t coalesces() const noexcept { return coalesces_; }
  inline std::uint64_t refused_coalesces() const noexcept { return refused_coalesces_; }
  inline std::size_t free_bytes() const noexcept { return free_bytes_; }
  std::size_t largest_free() noexcept;
  /// Returns the size of the longest run of free blocks in a chunk, whatever their uses. Takes time in proportion to
  /// the blocks of the chunk.
  static std::size_t largest_run(chunk const& parent) noexcept;

private:
  static inline bool may_coalesce(block const& one, block const& other, coalescing with) noexcept {
    if (with == coalescing::any || one.uses.same_streams(other.uses)) return true;
    if (with == coalescing::same_streams) return false;
    auto const& unused = one.uses.empty() ? one : other;
    auto const& used = one.uses.empty() ? other : one;
    return unused.uses.empty() && unused.bytes / tuning::max_join_factor <= used.bytes;
  }

  block& split(block& range, std::size_t offset, std::size_t bytes);
  block& punch_hole(block& range, std::size_t offset, std::size_t bytes);
  void link_hole(block& hole) noexcept;
  void unlink_hole(block& hole) noexcept;
  block& split_front(block& whole, std::size_t bytes) noexcept;
  void link_below(block& one, block& upper) noexcept;
  void link_above(block& one, block& lower) noexcept;

  void erase(block& joined) noexcept;
  void insert(block& range, block* beside) noexcept;
  void extract(block& range) noexcept;
  void link_pair(block& lower) noexcept;
  // Returns whether the block and its upper neighbour are both free. The list of pairs then contains the block.
  inline bool is_pair(block const& lower) const noexcept {
    return pairs_ && lower.is_free() && lower.upper && lower.upper->is_free();
  }
  void unlink_pair(block& lower) noexcept;
  bool merge_upper(block& range) noexcept;
  block& merge_into_lower(block& lower, block& by) noexcept;
  block& merge_into_upper(block& upper, block& by) noexcept;
  block& coalesce(block& freed, coalescing with) noexcept;

  block_metadata metadata_;
  block_table table_{metadata_};
  free_lists lists_;
  block* pairs_ = nullptr;
  block* holes_ = nullptr; // linked by `newer` and `older`
  std::size_t free_bytes_ = 0;
  std::uint64_t coalesces_ = 0;
  std::uint64_t refused_coalesces_ = 0;
};

} // namespace gpumem::detail
