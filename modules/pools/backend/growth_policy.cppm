// The growth policy of pools over pages: how much to map for a request, where, and in pages of which size.
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
import :shard_roles;
import :std;
import :stream;
import :tuning;
import :virtual_pages;

namespace gpumem::detail {

/// How much to map for a request, in bytes, and where.
export struct growth_plan {
  std::optional<page_extent> hole; ///< addresses in which to map; none: at the end of the mapped addresses
  std::size_t bytes;
  std::size_t least;         ///< bytes to map if the device has less than `bytes`
  std::uintptr_t beside = 0; ///< start of the free range that the new pages extend; 0: there is none
  bool downwards = false;    ///< that range is above the hole: the new pages end where it starts

  /// Returns the offset at which `mapped` bytes go into the hole.
  inline std::size_t offset(std::size_t mapped) const noexcept {
    return downwards ? hole->end() - mapped : hole->offset;
  }
};

/// Decides how much to map for a request, where, and in pages of which size; changes nothing in the pool. The caller
/// holds the locks of the shards that it passes; page_size() needs no lock. Sizes are in bytes.
///
/// Each stream has a segment of the addresses of its own. Its memory grows there, beside ranges that it has freed, and
/// coalesces with them. When streams grew side by side, none of them got back a range as large as it had freed.
export class growth_policy {
public:
  /// Keeps references to all arguments.
  growth_policy(chunk_list const& chunks, shard_list const& shards, reuse_rules const& rules) noexcept
      : chunks_{chunks}, shards_{shards}, rules_{rules} {}

  /// Returns whether the range is free, and only this stream or no stream has uses of it left.
  bool usable(block const* range, stream_key const& key) const;
  /// Returns where and how much to map for a request; nullopt if the addresses are used up and no hole is large enough.
  /// Prefers the place where the fewest bytes are missing, and among equal places one in the stream's segment. Unless
  /// `exact`, adds memory for later requests.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] std::optional<growth_plan>
  plan(allocation_request const& request, pool_shard const& in, bool exact) const;
  /// Returns whether to split the block off the upper end of its range. Large blocks go there: the next pages are
  /// mapped beside them, so that their range can grow after their free. Not under a limit: there it left more pages
  /// partly in use, and some requests of a recorded trace failed.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] inline bool
  place_high(std::size_t bytes, pool_shard const& in) const noexcept {
    return !chunks_.limit() && bytes >= in.reserved / tuning::high_block_fraction;
  }
  /// Returns the smallest page that is worth moving; in place of smaller ones the pool makes new, larger ones.
  std::size_t min_moved_page(virtual_pages const& of) const noexcept {
    return usual_page(of) / 4 * tuning::min_moved_quarters;
  }
  /// Returns the size of the pages for a growth by `bytes`. Each page costs the same time, whatever its size, so there
  /// are at most `max_pages`; but no page is larger than 32 MiB.
  std::size_t page_size(virtual_pages const& of, std::size_t bytes, std::size_t max_pages) const noexcept;
  /// Returns the page size that follows from the mapped bytes alone.
  std::size_t usual_page(virtual_pages const& of) const noexcept { return page_size(of, 0, 1); }

private:
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] block*
  usable_end(allocation_request const& request, pool_shard const& in) const;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] std::size_t
  shortfall(allocation_request const& request, pool_shard const& in, block const* end, bool exact) const;
  struct candidate;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] std::optional<candidate>
  best_hole(allocation_request const& request, pool_shard const& in, bool exact) const;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] std::optional<page_extent>
  new_segment(allocation_request const& request, pool_shard const& in) const;

  chunk_list const& chunks_;
  shard_list const& shards_;
  reuse_rules const& rules_;
};

} // namespace gpumem::detail
