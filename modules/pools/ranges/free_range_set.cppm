// The free ranges of a shard, and how they coalesce.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_range_set;
import :block;
import :block_metadata;
import :chunk;
import :free_list;
import :free_lists;
import :free_pairs;
import :std;
import :tuning;

namespace gpumem::detail {

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

  /// Marks a block as free and puts it on the free list of its uses: next to `beside`, a range with the same uses, if
  /// that is given.
  [[gnu::always_inline]] inline void insert(block& range, block* beside = nullptr) noexcept {
    range.set_state(block_state::free);
    if (beside) {
      beside->list->insert_beside(range, *beside);
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

  /// Says which free neighbours a freed block coalesces with. `same_streams`: those that the same streams used.
  /// `unused`: also if one of the two has no uses, and is at most `tuning::max_join_factor` times as large as the
  /// other. `any`: all.
  enum class coalescing : std::uint8_t { same_streams, unused, any };
  /// Frees a block that is on no list, and coalesces it with the neighbours that `with` names. Leaves a neighbour apart
  /// if the two have uses on more than four streams together. Returns the block that holds the freed one. Allocates no
  /// host memory.
  block& coalesce(block& freed, coalescing with) noexcept;
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
  block& merge_into_lower(block& lower, block& by) noexcept;
  block& merge_into_upper(block& upper, block& by) noexcept;

  free_lists lists_;
  free_pairs pairs_;
  block_metadata& records_; // beside the other small members, on the same cache line
  std::uint64_t coalesces_ = 0;
  std::uint64_t refused_coalesces_ = 0;
};

} // namespace gpumem::detail
