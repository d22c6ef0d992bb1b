// Growth and release of pools over pages.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:page_backend;
import :allocation_request;
import :attempt;
import :backend_parts;
import :block;
import :error;
import :growth_policy;
import :idle_pages;
import :pool_shard;
import :shard_list;
import :std;
import :stream_uses;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Maps pages at the end of a shard's addresses and in holes, moves free pages there, and unmaps idle pages. For locks
/// and errors see pool_backend, which calls it.
export class page_backend {
public:
  explicit page_backend(backend_parts& parts) noexcept;

  attempt<placement> grow(allocation_request const& request, all_shards_lock& held, bool exact);
  /// Maps these bytes at the end of the shard's addresses.
  expected<block*, failure> reserve(std::size_t bytes, pool_shard& into, all_shards_lock& held);
  placement move_at_limit(allocation_request const& request, all_shards_lock& held);
  std::size_t release(std::size_t keep, all_shards_lock& held) noexcept;
  void release_for(allocation_request const& request, all_shards_lock& held);
  /// Waits until no pages change. Returns the shard's pages that hold the address; null for chunks and for memory that
  /// is not the pool's.
  virtual_pages* pages_of(void const* pointer, all_shards_lock& held);

private:
  std::size_t affordable_pages() noexcept;
  void charge_moves(std::size_t pages) noexcept;
  void poll_for_moves(allocation_request const& request);
  stream_uses fresh_uses(allocation_request const& request) const noexcept;
  placement placement_in(block& fresh, allocation_request const& request) const;
  placement move(allocation_request const& request, all_shards_lock& held, bool at_limit);
  bool may_move(allocation_request const& request) const noexcept;
  expected<block*, failure> map(pool_shard& into, growth_plan const& plan, stream_uses const& uses,
                                all_shards_lock& held);
  expected<block*, failure> accept(pool_shard& into, expected<page_extent, failure> const& made,
                                   stream_uses const& uses, all_shards_lock& held);
  block& add(pool_shard& into, page_extent const& where, stream_uses const& uses);
  std::size_t release_idle(page_query const& query, all_shards_lock& held) noexcept;
  std::size_t lacking(std::size_t bytes) const noexcept;
  std::size_t evict(allocation_request const& request, std::optional<growth_plan> const& plan, std::size_t given,
                    all_shards_lock& held);

  backend_parts& parts_;
  idle_pages idle_;
  time_budget move_budget_; // for moves, for polls before them, and for new pages
};

} // namespace gpumem::detail
