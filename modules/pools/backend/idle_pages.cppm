// Idle pages of a pool: no live block lies on them, and the host has seen all their uses complete.
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

/// Adjacent idle pages, and their offset in the address range that holds them.
export struct page_run {
  address_range* in;
  block* last; ///< the free block in which the pages end; they may begin in blocks below it
  page_extent where;
  std::size_t pages = 1;
};

/// Tells which idle pages to find. The search ends when it has `wanted` bytes or `max_pages` pages. It leaves out a
/// page if the sum would exceed `max_bytes` with it.
export struct page_query {
  std::size_t wanted;
  std::size_t least = 0; ///< if fewer bytes are found, the result is empty
  std::size_t max_bytes = SIZE_MAX;
  std::uintptr_t excluded = 0;         ///< an address in a block whose pages stay; 0: none
  pool_shard const* nearest = nullptr; ///< pages of this shard go first
  bool only_nearest = false;           ///< leaves out pages of other shards
  address_range const* in = nullptr;   ///< leaves out pages of other ranges, and those not `within`; null: it does not
  page_extent within{};
  std::size_t largest = SIZE_MAX; ///< bytes of the largest page to find
  std::size_t smallest = 0;       ///< bytes of the smallest page to find
  std::size_t max_pages = SIZE_MAX;
  /// Memory that only this stream still uses counts as idle too. The caller must not detach pages of such a result.
  /// Null: no stream.
  stream_timeline const* in_use_by = nullptr;
};

/// Finds idle pages, and takes them out of the pool. Called under the locks of all shards, except unmap().
export class idle_pages {
public:
  explicit idle_pages(backend_parts& parts) noexcept : parts_{parts} {}

  /// Joins adjacent free ranges whose uses are complete, and returns whole idle pages in them. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard, all_shards)]] std::vector<page_run> find(page_query const& query);
  /// Takes pages out of the pool: makes their addresses a hole between blocks, and counts their bytes as being
  /// released. Returns these bytes. If the host has no memory for a hole, removes the remaining pages from `idle`: they
  /// stay in the pool.
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t detach(std::vector<page_run>& idle) noexcept;
  static std::size_t count(std::vector<page_run> const& runs) noexcept;
  static std::size_t bytes(std::vector<page_run> const& runs) noexcept;
  /// Unmaps detached pages. Called without the locks of the shards.
  static void unmap(std::vector<page_run> const& detached) noexcept;

private:
  // Adjacent free blocks whose uses are complete.
  struct idle_run {
    address_range* in;
    block* last; // the highest of these blocks
    std::uintptr_t begin, end;
    inline std::size_t bytes() const noexcept { return end - begin; }
  };
  [[clang::requires_capability(one_shard, all_shards)]] void coalesce_complete(address_range& in);
  [[clang::requires_capability(one_shard, all_shards)]] std::vector<idle_run> find_runs(page_query const& query);

  backend_parts& parts_;
};

} // namespace gpumem::detail
