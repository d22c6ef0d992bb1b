// The memory of a pool as blocks side by side, live and free, with the free ones on free lists.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:range_allocator;
import :block;
import :block_metadata;
import :block_table;
import :chunk;
import :free_lists;
import :std;
import :stream_uses;

namespace gpumem::detail {

/// Blocks linked to their neighbours, those that are not free by address, those that are by size and order. Guarded by
/// the lock of the pool that keeps it, but for `find_live`.
export class range_allocator {
public:
  range_allocator() = default;
  range_allocator(range_allocator const&) = delete;
  range_allocator& operator=(range_allocator const&) = delete;

  /// Host memory for so many blocks and streams never seen, which would else be had bit by bit. Throws std::bad_alloc.
  void reserve_metadata(std::size_t blocks, std::size_t streams) {
    metadata_.reserve(blocks);
    table_.reserve(blocks);
    lists_.reserve(streams);
  }
  /// A new chunk, wholly free. Throws std::bad_alloc, and nothing is changed.
  block& add(chunk& parent, stream_uses const& uses);
  /// So many bytes more behind the end of a chunk; they join a free last block of the same order. The block that holds
  /// them. Throws std::bad_alloc, and nothing is changed.
  block& extend(chunk& parent, std::size_t bytes, stream_uses const& uses);
  /// A chunk of another map, wholly free as one block. Throws std::bad_alloc, and nothing is changed.
  block& adopt(chunk& parent, range_allocator& from);
  /// Forgets a chunk without live blocks.
  void remove(chunk& parent) noexcept;

  /// The block in which the address lies; time grows with the blocks of the chunk.
  static block* find_containing(chunk const& parent, void const* pointer) noexcept;
  /// The block that begins there and is live, or kept apart, or null. Without the lock: for whoever owns the block.
  inline block* find_live(void const* pointer) const noexcept { return table_.find(pointer); }

  inline free_lists& lists() noexcept { return lists_; }
  inline free_lists const& lists() const noexcept { return lists_; }

  /// Cuts `bytes` at `offset` out of a free block and makes them live; what is left stays free, with the same uses.
  /// Throws std::bad_alloc, and nothing is changed.
  block& split_off(block& range, std::size_t offset, std::size_t bytes);
  /// The same of the first bytes of a range, with some more blocks of that small size behind them, which stay apart.
  block& split_run(block& range, std::size_t bytes);
  /// How large a range is to be, in blocks, that a span is cut from it.
  static constexpr std::size_t min_blocks_for_run = 16;
  /// Makes a small block that was kept apart live.
  inline void pop_quick(block& spare) noexcept {
    lists_.of(spare.uses).quick().pop(spare);
    spare.uses.clear();
    free_bytes_ -= spare.bytes;
    ++spare.parent->live_blocks;
  }
  /// Makes a live small block free, with the uses it has, and apart; false, and nothing is changed, where enough of its
  /// size are.
  inline bool push_quick(block& small) noexcept {
    if (!lists_.of(small.uses).quick().push(small)) return false;
    --small.parent->live_blocks;
    free_bytes_ += small.bytes;
    return true;
  }
  /// What is kept apart joins its neighbours, as in `free`. Whether there was any.
  bool flush_quick_lists() noexcept;
  /// Cuts so many bytes from the address `base` on out as a hole: memory that leaves, in a chunk that stays. They end
  /// in the free block `last`, and lie in it and in free ones below it. The hole, with those beside it. Throws
  /// std::bad_alloc, and nothing is changed.
  block& make_hole(block& last, std::uintptr_t base, std::size_t bytes);
  /// So many bytes of a hole, from an offset in it on, have memory again. Throws std::bad_alloc, and nothing is
  /// changed.
  block& fill_hole(block& hole, std::size_t offset, std::size_t bytes, stream_uses const& uses);
  /// A chunk that ends in a hole ends before it; one that is nothing else is empty.
  void trim_hole(chunk& parent) noexcept;
  /// The hole in which the address lies; time grows with the holes.
  block& hole_at(std::uintptr_t address) noexcept;
  /// Visits every hole.
  template <class Visit> void visit_holes(Visit visitor) const {
    for (auto const* each = holes_; each; each = each->newer) visitor(*each);
  }

  /// Makes a live block free, with the uses it has, joined with free neighbours, unless their uses are too many
  /// together: with those that wait for the same streams, or with any. What it is then a part of. Allocates nothing.
  enum class coalescing : std::uint8_t { same_streams, unused, any };
  block& free(block& freed, coalescing with) noexcept;
  /// The host has seen every use of a free block complete: it joins what nobody uses. What it is then a part of.
  block& mark_complete(block& range) noexcept;
  /// Drops those uses of a free block that the host has seen complete; it joins what waits for the same streams then.
  void prune(block& range) noexcept;
  /// Joins a free block with the free one above it; false, and nothing changed, if their uses are too many.
  bool merge(block& lower) noexcept;

  /// Joins free neighbours of which `may(block)` holds for both, everywhere.
  template <class May> void coalesce_all(May may) {
    for (auto* at = pairs_; at;) {
      auto* next = at->pair_next;
      while (at->upper && at->upper->is_free() && may(*at) && may(*at->upper)) {
        if (next == at->upper) next = next->pair_next; // it will be gone
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
  /// The most free bytes side by side in a chunk, whatever their uses; time grows with its blocks.
  static std::size_t largest_run(chunk const& parent) noexcept;

private:
  // Whether free neighbours join. A small block takes no large range from all streams.
  static constexpr std::size_t times_larger = 16;
  static inline bool may_coalesce(block const& one, block const& other, coalescing with) noexcept {
    if (with == coalescing::any || one.uses.same_streams(other.uses)) return true;
    if (with == coalescing::same_streams) return false;
    auto const& unused = one.uses.empty() ? one : other;
    auto const& used = one.uses.empty() ? other : one;
    return unused.uses.empty() && unused.bytes / times_larger <= used.bytes;
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
  // It and the one above it are free, and on the list of these.
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
