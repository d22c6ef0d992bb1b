// Pages of a pool on which no block lies and whose uses are complete.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:idle_pages;
import :backend_parts;
import :block;
import :pool_shard;
import :shard_roles;
import :std;
import :stream_timeline;
import :virtual_pages;

namespace gpumem::detail {

/// Adjacent whole idle pages, by offset in the shard's pages.
export struct page_run {
  pool_shard* shard;
  block* last; ///< the block in which the pages end; it and blocks below it hold them
  page_extent where;
  std::size_t pages = 1;
};

/// Tells which idle pages to find: until `wanted` bytes are found, `max_bytes` and `max_pages` at most.
export struct page_query {
  std::size_t wanted;
  std::size_t least = 0; ///< if there are fewer bytes, no page is found
  std::size_t max_bytes = SIZE_MAX;
  std::uintptr_t excluded = 0; ///< an address in the block that stays; 0: none
  pool_shard* in = nullptr;    ///< only pages of this shard; null: of all shards
  std::size_t smallest = 0;    ///< bytes of a page
  std::size_t max_pages = SIZE_MAX;
  /// Counts memory as idle if only this stream still uses it; such pages must not be detached yet. Null: none.
  stream_timeline const* in_use_by = nullptr;
};

/// Finds idle pages, and takes them out of the pool. Called under the locks of all shards.
export class idle_pages {
public:
  explicit idle_pages(backend_parts& parts) noexcept : parts_{parts} {}

  /// Coalesces complete ranges, and returns whole pages of them. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard, all_shards)]] std::vector<page_run> find(page_query const& query);
  /// Makes holes of the pages, and counts them as being released. Returns their bytes. If the host has no memory for
  /// the holes, removes the remaining pages from `idle`: they stay mapped.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t detach(std::vector<page_run>& idle) noexcept;
  static std::size_t count(std::vector<page_run> const& runs) noexcept;
  static std::size_t bytes(std::vector<page_run> const& runs) noexcept;
  /// Unmaps detached pages; called without the locks.
  static void unmap(std::vector<page_run> const& detached) noexcept;

private:
  // Adjacent free blocks whose uses are complete, as one run of addresses.
  struct idle_run {
    pool_shard* in;
    block* last; // the highest of the blocks
    std::uintptr_t begin, end;
    inline std::size_t bytes() const noexcept { return end - begin; }
  };
  [[clang::requires_capability(one_shard, all_shards)]] void coalesce_complete(pool_shard& in);
  [[clang::requires_capability(one_shard, all_shards)]] std::vector<idle_run> find_runs(page_query const& query);

  backend_parts& parts_;
};

} // namespace gpumem::detail
