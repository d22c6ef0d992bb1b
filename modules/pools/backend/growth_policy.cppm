// How a pool that draws pages grows.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:growth_policy;
import :allocation_request;
import :block;
import :chunk_list;
import :pool_shard;
import :reuse_rules;
import :shard_list;
import :std;
import :stream;
import :virtual_pages;

namespace gpumem::detail {

/// What to map for a request, in bytes.
export struct growth_plan {
  std::optional<page_extent> hole; ///< in these addresses; none: at the end
  std::size_t bytes;
  std::size_t least;         ///< where the device has not so much
  std::uintptr_t beside = 0; ///< where free memory begins that the request is to have with it; 0: there is none
  bool downwards = false;    ///< that memory is above the hole: what is mapped ends there

  /// Where in the hole so many bytes go.
  inline std::size_t offset(std::size_t mapped) const noexcept {
    return downwards ? hole->end() - mapped : hole->offset;
  }
};

/// How much is mapped for a request, where, and in pages of which size. Decides, and changes nothing of the pool. Each
/// call but `page_size` is under the locks of the shards that it is given. Sizes are in bytes.
///
/// Each stream has a segment of the addresses as its own: its memory grows there, beside what it has freed, and joins.
/// Where streams grew side by side, none of them got back a range as large as it had freed.
export class growth_policy {
public:
  /// Refers to all of them.
  growth_policy(chunk_list const& chunks, shard_list const& shards, reuse_rules const& rules) noexcept
      : chunks_{chunks}, shards_{shards}, rules_{rules} {}

  /// Whether the range is free, and either the stream alone or no stream has uses of it left.
  bool usable(block const* range, stream_key const& key) const;
  /// Where and how much to map for a request; if not `exact`, with what those who ask next are to find. Where the least
  /// is missing; if that is the same, in the stream's segment. Nothing: the addresses come to an end, and no hole is
  /// large enough.
  std::optional<growth_plan> plan(allocation_request const& request, pool_shard const& in, bool exact) const;
  /// Whether a block lies at the end of the range that it is cut from. The large ones do: beside what is mapped next,
  /// so that there they can grow when they are free again. Not under a limit: there more pages were partly in use, for
  /// which some of a recorded trace failed.
  inline bool place_high(std::size_t bytes, pool_shard const& in) const noexcept {
    return !chunks_.limit() && bytes >= in.reserved / large_part;
  }
  /// The smallest page that is worth moving; from others larger ones are made.
  std::size_t min_moved_page(virtual_pages const& of) const noexcept { return usual_page(of) / 4 * 3; }
  /// Returns the size of the pages for a growth by `bytes`. Each page costs the same: there are `most` of them at most,
  /// but no page is larger than 32 MiB.
  std::size_t page_size(virtual_pages const& of, std::size_t bytes, std::size_t max_pages) const noexcept;
  /// Returns the size that follows from what is mapped alone.
  std::size_t usual_page(virtual_pages const& of) const noexcept { return page_size(of, 0, 1); }

private:
  static constexpr std::size_t large_part = 16; // of what is reserved
  block* usable_end(allocation_request const& request, pool_shard const& in) const;
  std::size_t shortfall(allocation_request const& request, pool_shard const& in, block const* end, bool exact) const;
  struct candidate;
  std::optional<candidate> best_hole(allocation_request const& request, pool_shard const& in, bool exact) const;
  std::optional<page_extent> new_segment(allocation_request const& request, pool_shard const& in) const;

  chunk_list const& chunks_;
  shard_list const& shards_;
  reuse_rules const& rules_;
};

} // namespace gpumem::detail
