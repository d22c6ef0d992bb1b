// Splits blocks off the free ranges of one shard, coalesces them, and makes and fills holes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:range_allocator;
import :block;
import :block_table;
import :free_lists;
import :std;

namespace gpumem::detail {

/// A list of the lower blocks of all pairs, linked by the members `pair_prev` and `pair_next` of `block`. By this list
/// all neighbours that might coalesce are found without a visit of every block. Guarded by the lock of the shard that
/// owns the list.
export class free_pairs {
public:
  /// Returns the lower block of the pair that was added last; null if there is no pair.
  inline block* first() const noexcept { return first_; }

  /// Adds the pair that a free block makes with its upper neighbour, if that is free too.
  inline void add_with_upper(block& block) noexcept {
    if (block.upper && block.upper->is_free()) link(block);
  }
  /// Adds the pair that a free block makes with its lower neighbour, if that is free too.
  inline void add_with_lower(block& block) noexcept {
    if (block.lower && block.lower->is_free()) link(*block.lower);
  }
  /// Removes the pair of a block and its upper neighbour, if both are free. Called before either of them changes.
  inline void remove_with_upper(block& block) noexcept {
    if (is_pair(block)) unlink(block);
  }
  /// Removes the pair of a block and its lower neighbour, if both are free. Called before either of them changes.
  inline void remove_with_lower(block& block) noexcept {
    if (block.lower && is_pair(*block.lower)) unlink(*block.lower);
  }

private:
  inline bool is_pair(block const& lower) const noexcept {
    return first_ && lower.is_free() && lower.upper && lower.upper->is_free();
  }
  inline void link(block& lower) noexcept {
    lower.pair_prev = nullptr;
    lower.pair_next = first_;
    if (first_) first_->pair_prev = &lower;
    first_ = &lower;
  }
  inline void unlink(block& lower) noexcept {
    (lower.pair_prev ? lower.pair_prev->pair_next : first_) = lower.pair_next;
    if (lower.pair_next) lower.pair_next->pair_prev = lower.pair_prev;
  }

  block* first_ = nullptr;
};

/// All free ranges of a shard, except the freed small blocks that quick lists keep. A use of a range is the work of one
/// stream on it. Each range is on the free list of the streams of its uses. Joins adjacent ranges to one, and gives the
/// records of joined blocks back. Guarded by the lock of the shard.
export class free_range_set {
public:
  /// `records`: the memory of the records of all blocks. This object keeps a reference to it.
  explicit free_range_set(block_metadata& records) : records_{records} {}

  inline free_lists& lists() noexcept { return lists_; }
  inline free_lists const& lists() const noexcept { return lists_; }
  inline free_pairs& pairs() noexcept { return pairs_; }

  /// Marks a block as free and puts it on the free list of its uses: next to `neighbour`, a range with the same uses,
  /// if that is given.
  [[gnu::always_inline]] inline void insert(block& range, block* neighbour = nullptr) noexcept {
    range.set_state(block_state::free);
    if (neighbour) {
      neighbour->list->insert_beside(range, *neighbour);
    } else {
      lists_.of(range.uses).insert(range);
    }
    pairs_.add_with_upper(range);
    pairs_.add_with_lower(range);
  }
  /// Takes a block off its free list, and marks it as allocated.
  [[gnu::always_inline]] inline void extract(block& range) noexcept {
    range.list->remove(range);
    pairs_.remove_with_upper(range);
    pairs_.remove_with_lower(range);
    range.set_state(block_state::allocated);
  }

  /// Says which free neighbours a freed block coalesces with. `complete`: those without uses, and only if the block has
  /// none either. `same_streams`: those that the same streams used. `unused`: also if one of the two has no uses, and
  /// is at most `tuning::max_join_factor` times as large as the other. `any`: all.
  enum class coalescing : std::uint8_t { complete, same_streams, unused, any };
  /// Frees a block that is on no list, and coalesces it with the neighbours that `coalescing` names. Leaves a neighbour
  /// apart if the two have uses on more than four streams together. Returns the block that holds the freed one.
  /// Allocates no host memory.
  block& coalesce(block& returned, coalescing coalescing) noexcept;
  /// Drops the uses of a free block, all of which the host has seen complete, and coalesces the block with neighbours
  /// without uses. Returns the block that holds it.
  block& mark_complete(block& range) noexcept;
  /// Drops those uses of a free block that the host has seen complete, and coalesces the block with neighbours that the
  /// remaining streams used.
  void prune(block& range) noexcept;
  /// Joins a free block with the free one above it. Returns false, and changes nothing, if the two have uses on more
  /// than four streams together.
  bool merge(block& lower) noexcept;
  /// Joins each pair of free neighbours if `may(block)` is true for both.
  template <class May> void coalesce_all(May may) {
    for (auto* at = pairs_.first(); at;) {
      auto* next = at->pair_next;
      while (at->upper && at->upper->is_free() && may(*at) && may(*at->upper)) {
        if (next == at->upper) next = next->pair_next; // merge() releases the record of at->upper
        if (!merge(*at)) break;
      }
      at = next;
    }
  }

  /// Returns how many times two blocks were joined.
  inline std::uint64_t coalesces() const noexcept { return coalesces_; }
  /// Returns how many times two blocks were not joined because they had uses on more than four streams together.
  inline std::uint64_t refused_coalesces() const noexcept { return refused_coalesces_; }

private:
  bool merge_upper(block& range) noexcept;
  block& merge_into_lower(block& lower, block& addition) noexcept;
  block& merge_into_upper(block& upper, block& addition) noexcept;

  free_lists lists_;
  free_pairs pairs_;
  block_metadata& records_; // beside the other small members, on the same cache line
  std::uint64_t coalesces_ = 0;
  std::uint64_t refused_coalesces_ = 0;
};

/// A list of all holes, linked by the members `older` and `newer` of `block`. Guarded by the lock of the shard that
/// owns the list.
export class hole_list {
public:
  /// Marks a block, which is on no other list, as a hole and adds it.
  void insert(block& hole) noexcept;
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
  block& adopt(chunk& parent, range_allocator& source);
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
  /// Joins `bytes` from the address `base` on, all of which lie in free blocks, to one free block with these uses;
  /// `last` is the highest of these blocks. Returns it. Throws std::bad_alloc.
  block& gather(block& last, std::uintptr_t base, std::size_t bytes, stream_uses const& uses);
  /// Divides a live block into two live ones; the lower one has `bytes`. Returns the upper one. Throws std::bad_alloc.
  block& divide(block& whole, std::size_t bytes);
  /// Shortens a chunk by the hole at its end, if there is one. A chunk that is only a hole becomes empty.
  void trim_hole(chunk& parent) noexcept;

  using coalescing = free_range_set::coalescing;
  /// Frees a live block with its uses, and coalesces it as free_range_set::coalesce() does. Returns the block that
  /// holds it. Allocates no host memory.
  block& free(block& returned, coalescing coalescing) noexcept;

  inline std::size_t free_bytes() const noexcept { return free_bytes_; }

private:
  block& split(block& range, std::size_t offset, std::size_t bytes);
  block& split_front(block& range, std::size_t bytes) noexcept;
  block& punch_hole(block& range, std::size_t offset, std::size_t bytes);

  block_metadata metadata_;
  block_table table_{metadata_};
  free_range_set free_{metadata_};
  hole_list holes_;
  std::size_t free_bytes_ = 0;
};

} // namespace gpumem::detail
