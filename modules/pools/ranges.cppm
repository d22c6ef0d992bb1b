// The memory of a pool as blocks side by side, live and free, with a best-fit index over the free ones.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
export module gpumem:ranges;
import :tags;
import :timeline;

namespace gpumem::detail {

/// One allocation of a pool's upstream; blocks are cut from it and never join beyond it.
export struct chunk {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::size_t live_blocks = 0;
};

export struct block;

/// Orders free blocks by size, equal ones by address.
export struct smaller_block {
  using is_transparent = void;
  inline bool operator()(block const* a, block const* b) const noexcept;
  inline bool operator()(block const* a, std::size_t bytes) const noexcept;
};

export using size_index = std::set<block*, smaller_block>;

/// Memory that is granted or free as one.
export struct block {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  chunk* home = nullptr;
  bool live = false;
  bool deferred = false;      ///< freed, but by a stream that is capturing a graph: the free is still to be done
  std::size_t requested = 0;  ///< while live
  timeline* stream = nullptr; ///< while live, the stream that it was given to; deferred, the stream that freed it
  block* next_deferred = nullptr;
  tag_set tags;                ///< free: what must be over before reuse; live: uses recorded so far
  size_index::node_type spare; ///< while live, its place in the index, so that a free allocates nothing

  inline std::uintptr_t end() const noexcept { return base + bytes; }
  void* pointer() const noexcept { return reinterpret_cast<void*>(base); }
};

inline bool smaller_block::operator()(block const* a, block const* b) const noexcept {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->base < b->base;
}
inline bool smaller_block::operator()(block const* a, std::size_t bytes) const noexcept { return a->bytes < bytes; }

/// Whether `bytes` bytes so aligned lie in the block; `offset` is then where.
export bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept;

/// Address-ordered blocks and the index of the free ones. Guarded by the lock of the pool that keeps it.
export class range_map {
public:
  range_map() = default;
  range_map(range_map const&) = delete;
  range_map& operator=(range_map const&) = delete;

  /// A new chunk, wholly free. Throws std::bad_alloc, and nothing is changed.
  block& add(chunk& home, tag_set const& tags);
  /// Forgets a chunk without live blocks.
  void remove(chunk const& home) noexcept;

  /// The block in which the address lies, or null.
  block* covering(void const* pointer) noexcept;

  /// Free blocks from this size up, smallest first.
  size_index::const_iterator at_least(std::size_t bytes) const { return index_.lower_bound(bytes); }
  size_index const& by_size() const noexcept { return index_; }

  /// Cuts `bytes` at `offset` out of a free block and makes them live; what is left stays free, with the same tags.
  /// Throws std::bad_alloc, and nothing is changed.
  block& take(block& range, std::size_t offset, std::size_t bytes);
  /// Makes a live block free, with the tags it has. Allocates nothing.
  void release(block& freed) noexcept;

  /// The free neighbour below or above in the same chunk, or null.
  block* below(block const& range) noexcept;
  block* above(block const& range) noexcept;
  /// Joins two free neighbours into the lower one; false, and nothing changed, if their tags are too many.
  bool join(block& lower, block& upper) noexcept;

  /// Joins free neighbours of which `may(block)` holds for both, everywhere; how many joins were made.
  template <class May> std::size_t join_all(May may) {
    std::size_t joins = 0;
    for (auto& [base, each] : blocks_) { // a join takes away only what comes after
      if (each.live || !may(each)) continue;
      for (auto* next = above(each); next && may(*next) && join(each, *next); next = above(each)) ++joins;
    }
    return joins;
  }

  /// Visits every block of a chunk in order of address.
  template <class Visit> void visit(chunk const& home, Visit visitor) {
    for (auto at = blocks_.find(home.base); at != blocks_.end() && at->second.home == &home; ++at) visitor(at->second);
  }
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& [base, each] : blocks_) visitor(each);
  }

  std::uint64_t refused_joins() const noexcept { return refused_joins_; }
  inline std::size_t free_bytes() const noexcept { return free_bytes_; }
  std::size_t largest_free() const noexcept { return index_.empty() ? 0 : (*index_.rbegin())->bytes; }
  /// The most free bytes side by side, whatever their tags.
  std::size_t largest_run() const noexcept;

private:
  using block_map = std::map<std::uintptr_t, block>;
  block& insert(block_map::const_iterator hint, block const& like, std::uintptr_t base, std::size_t bytes);
  void resize(block& range, std::uintptr_t end) noexcept;

  block_map blocks_;
  size_index index_;
  std::size_t free_bytes_ = 0;
  std::uint64_t refused_joins_ = 0;
};

} // namespace gpumem::detail
