// The memory of a pool as blocks side by side, live and free, with the free ones on shelves.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:ranges;
import :block;
import :block_table;
import :records;
import :shelf;
import :std;
import :tags;

namespace gpumem::detail {

/// Blocks linked to their neighbours, those that are not free by address, those that are by size and order. Guarded by
/// the lock of the pool that keeps it, but for `granted_at`.
export class range_map {
public:
  range_map() = default;
  range_map(range_map const&) = delete;
  range_map& operator=(range_map const&) = delete;

  /// Host memory for so many blocks and streams never seen, which would else be had bit by bit. Throws std::bad_alloc.
  void prepare(std::size_t blocks, std::size_t streams);
  /// A new chunk, wholly free. Throws std::bad_alloc, and nothing is changed.
  block& add(chunk& home, tag_set const& tags);
  /// So many bytes more behind the end of a chunk; they join a free last block of the same order. The block that holds
  /// them. Throws std::bad_alloc, and nothing is changed.
  block& extend(chunk& home, std::size_t bytes, tag_set const& tags);
  /// A chunk of another map, wholly free as one block. Throws std::bad_alloc, and nothing is changed.
  block& take_over(chunk& home, range_map& from);
  /// Forgets a chunk without live blocks.
  void remove(chunk& home) noexcept;

  /// The block in which the address lies; time grows with the blocks of the chunk.
  static block* covering(chunk const& home, void const* pointer) noexcept;
  /// The block that begins there and is live, or kept apart, or null. Without the lock: for whoever owns the block.
  inline block* granted_at(void const* pointer) const noexcept { return granted_.find(pointer); }

  inline shelves& by_order() noexcept { return shelves_; }
  inline shelves const& by_order() const noexcept { return shelves_; }

  /// Cuts `bytes` at `offset` out of a free block and makes them live; what is left stays free, with the same tags.
  /// Throws std::bad_alloc, and nothing is changed.
  block& take(block& range, std::size_t offset, std::size_t bytes);
  /// The same of the first bytes of a range, with some more blocks of that small size behind them, which stay apart.
  block& take_span(block& range, std::size_t bytes);
  /// How large a range is to be, in blocks, that a span is cut from it.
  static constexpr std::size_t least_for_span = 16;
  /// Makes a small block that was kept apart live.
  inline void take_spare(block& spare) noexcept {
    shelves_.of(spare.tags).spans().take(spare);
    spare.tags.clear();
    free_bytes_ -= spare.bytes;
    ++spare.home->live_blocks;
  }
  /// Makes a live small block free, with the tags it has, and apart; false, and nothing is changed, where enough of its
  /// size are.
  inline bool keep(block& small) noexcept {
    if (!shelves_.of(small.tags).spans().put(small)) return false;
    --small.home->live_blocks;
    free_bytes_ += small.bytes;
    return true;
  }
  /// What is kept apart joins its neighbours, as in `release`. Whether there was any.
  bool join_spans() noexcept;
  /// Cuts so many bytes from the address `base` on out as a hole: memory that leaves, in a chunk that stays. They end
  /// in the free block `last`, and lie in it and in free ones below it. The hole, with those beside it. Throws
  /// std::bad_alloc, and nothing is changed.
  block& carve(block& last, std::uintptr_t base, std::size_t bytes);
  /// So many bytes of a hole, from an offset in it on, have memory again. Throws std::bad_alloc, and nothing is
  /// changed.
  block& fill(block& hole, std::size_t offset, std::size_t bytes, tag_set const& tags);
  /// A chunk that ends in a hole ends before it; one that is nothing else is empty.
  void cut_off_hole(chunk& home) noexcept;
  /// The hole in which the address lies; time grows with the holes.
  block& hole_at(std::uintptr_t address) noexcept;
  /// Visits every hole.
  template <class Visit> void visit_holes(Visit visitor) const {
    for (auto const* each = holes_; each; each = each->newer) visitor(*each);
  }

  /// Makes a live block free, with the tags it has, joined with free neighbours, unless their tags are too many
  /// together: with those that wait for the same streams, or with any. What it is then a part of. Allocates nothing.
  enum class joining : std::uint8_t { alike, unused, any };
  block& release(block& freed, joining with) noexcept;
  /// The host has seen every use of a free block complete: it joins what nobody uses. What it is then a part of.
  block& complete(block& range) noexcept;
  /// Drops those uses of a free block that the host has seen complete; it joins what waits for the same streams then.
  void prune(block& range) noexcept;
  /// Joins a free block with the free one above it; false, and nothing changed, if their tags are too many.
  bool join(block& lower) noexcept;

  /// Joins free neighbours of which `may(block)` holds for both, everywhere.
  template <class May> void join_all(May may) {
    for (auto* at = pairs_; at;) {
      auto* next = at->pair_next;
      while (at->upper && at->upper->is_free() && may(*at) && may(*at->upper)) {
        if (next == at->upper) next = next->pair_next; // it will be gone
        if (!join(*at)) break;
      }
      at = next;
    }
  }

  /// Visits every block of a chunk in order of address.
  template <class Visit> static void visit(chunk const& home, Visit visitor) {
    for (auto* each = home.first; each; each = each->upper) visitor(*each);
  }

  inline std::uint64_t joins() const noexcept { return joins_; }
  inline std::uint64_t refused_joins() const noexcept { return refused_joins_; }
  inline std::size_t free_bytes() const noexcept { return free_bytes_; }
  std::size_t largest_free() noexcept;
  /// The most free bytes side by side in a chunk, whatever their tags; time grows with its blocks.
  static std::size_t largest_run(chunk const& home) noexcept;

private:
  // Whether free neighbours join. A small block takes no large range from all streams.
  static constexpr std::size_t times_larger = 16;
  static inline bool may_join(block const& one, block const& other, joining with) noexcept {
    if (with == joining::any || one.tags.same_streams(other.tags)) return true;
    if (with == joining::alike) return false;
    auto const& unused = one.tags.empty() ? one : other;
    auto const& used = one.tags.empty() ? other : one;
    return unused.tags.empty() && unused.bytes / times_larger <= used.bytes;
  }

  block& cut(block& range, std::size_t offset, std::size_t bytes);
  block& hollow_out(block& range, std::size_t offset, std::size_t bytes);
  void link_hole(block& hole) noexcept;
  void unlink_hole(block& hole) noexcept;
  block& cut_below(block& whole, std::size_t bytes) noexcept;
  void link_below(block& one, block& upper) noexcept;
  void link_above(block& one, block& lower) noexcept;

  void forget(block& joined) noexcept;
  void put(block& range, block* beside) noexcept;
  void pull(block& range) noexcept;
  void pair(block& lower) noexcept;
  // It and the one above it are free, and on the list of these.
  inline bool paired(block const& lower) const noexcept {
    return pairs_ && lower.is_free() && lower.upper && lower.upper->is_free();
  }
  void unpair(block& lower) noexcept;
  bool absorb_upper(block& range) noexcept;
  block& grow_lower(block& lower, block& by) noexcept;
  block& grow_upper(block& upper, block& by) noexcept;
  block& settle(block& freed, joining with) noexcept;

  record_array records_;
  block_table granted_{records_};
  shelves shelves_;
  block* pairs_ = nullptr;
  block* holes_ = nullptr; // linked by `newer` and `older`
  std::size_t free_bytes_ = 0;
  std::uint64_t joins_ = 0;
  std::uint64_t refused_joins_ = 0;
};

} // namespace gpumem::detail
