// The growth policy of pools that map pages: how much to map for a request, where, in pages of which size, and what a
// page costs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:growth_policy;
import :block;
import :chunk_list;
import :pool_shard;
import :range_search;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// A plan for a growth: how many bytes to map, and where.
export struct growth_plan {
  address_range* in;               ///< where to map
  std::optional<page_extent> hole; ///< unmapped addresses in which to map; none: after all mapped addresses of `in`
  std::size_t bytes;
  std::size_t least;         ///< bytes that are enough for the request; mapped if the device has less than `bytes`
  std::uintptr_t beside = 0; ///< start of the free range that the new pages extend; 0: there is none
  bool downwards = false;    ///< the range at `beside` is above the hole: the new pages end where that range starts

  /// Returns the offset at which to map `mapped` bytes in the hole.
  inline std::size_t offset(std::size_t mapped) const noexcept {
    return downwards ? hole->end() - mapped : hole->offset;
  }
};

/// Decides how much to map for a request, where, and in pages of which size. Changes nothing in the pool. The caller
/// holds the locks of the shards that it passes; page_size() needs no lock. Sizes are in bytes.
///
/// Each stream has a segment of a shard's addresses. The stream's memory grows in its segment, beside ranges that the
/// stream has freed, and is joined with them. Without segments streams grew side by side, and no stream got back a
/// range as large as it had freed.
export class growth_policy {
public:
  /// Keeps references to all arguments.
  growth_policy(chunk_list const& chunks, shard_list const& shards, reuse_rules const& rules,
                std::size_t unit = smallest_page) noexcept
      : chunks_{chunks}, shards_{shards}, rules_{rules}, unit_{unit} {}

  /// Returns whether `range` is free, and no stream other than that of `key` still uses it. Returns false if `range` is
  /// null.
  bool usable(block const* range, stream_key const& key) const;
  /// Returns how much to map for a request, and where; nullopt if no address range of the shard has enough adjacent
  /// unmapped addresses. Prefers the place where the fewest bytes must be mapped. Among equal places prefers those of
  /// the newest address range, and there one in the stream's segment. Unless `exact`, adds memory for later requests.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  std::optional<growth_plan> plan(allocation_request const& request, pool_shard const& shard, bool exact) const;
  /// Returns whether the shard is to get a larger address range: its newest one has fewer than `most` addresses, and
  /// fewer than 64 for each byte of the shard's memory. Holes and segments need many more addresses than memory.
  GPUMEM_REQUIRES(one_shard) static bool is_short_of_addresses(pool_shard const& shard, std::size_t most) noexcept;
  /// Returns the size of the smallest page that is worth moving to a shard of `reserved` bytes. In place of smaller
  /// pages the pool makes new, larger ones.
  std::size_t min_moved_page(std::size_t reserved) const noexcept;
  /// Returns the size of the pages for a growth by `bytes` of a shard that has `reserved` bytes. Each page costs the
  /// same time, whatever its size. So without a limit there are at most `max_pages` pages, unless each would have to be
  /// larger than 32 MiB.
  std::size_t page_size(std::size_t reserved, std::size_t bytes, std::size_t max_pages) const noexcept;
  /// Returns the page size for a small growth. This size follows from the shard's bytes, or from the limit if there is
  /// one.
  std::size_t usual_page(std::size_t reserved) const noexcept { return page_size(reserved, 0, 1); }
  /// Returns the unit in which the pool's memory grows: the smallest page.
  inline std::size_t unit() const noexcept { return unit_; }

private:
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  std::optional<growth_plan> plan_in(allocation_request const& request, address_range& addresses, bool exact) const;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  block* usable_end(allocation_request const& request, address_range const& addresses) const;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  std::size_t shortfall(allocation_request const& request, address_range const& addresses, block const* end,
                        std::size_t offset, bool exact) const;
  struct candidate;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  std::optional<candidate> best_hole(allocation_request const& request, address_range& addresses, bool exact) const;
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  std::optional<page_extent> new_segment(allocation_request const& request, address_range const& addresses) const;

  chunk_list const& chunks_;
  shard_list const& shards_;
  reuse_rules const& rules_;
  std::size_t const unit_;
};

/// The median of the time per page of the last `kept` growths and moves. It begins as `tuning::page_cost`, which counts
/// as one of them. A median, because a thread that is preempted during a growth measures far too much time. One thread
/// at a time: the owner's lock guards it.
export class page_price {
public:
  using nanoseconds = time_budget::nanoseconds;
  static constexpr std::size_t kept = 9;
  static constexpr nanoseconds least{1'000}; ///< the smallest price: a clock may show no time at all

  page_price() noexcept;
  inline nanoseconds median() const noexcept { return median_; }
  /// Adds a growth or a move of `pages` pages that took the time `time`. Does nothing if there are no pages.
  void add(nanoseconds time, std::size_t pages) noexcept;

private:
  std::array<nanoseconds, kept> recent_; // a ring; the first `count_` are set
  std::size_t count_ = 1;
  nanoseconds median_;
};

} // namespace gpumem::detail
