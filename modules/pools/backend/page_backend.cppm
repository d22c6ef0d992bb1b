// Growth and release of pools that map pages, and the idle pages that they move or release.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:page_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :device;
import :error;
import :growth_policy;
import :page_store;
import :pool_backend;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :range_search;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream_timeline;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Adjacent idle pages, and their offset in the address range that holds them.
export struct page_run {
  address_range* in;
  block* last; ///< the free block in which the pages end; they may begin in blocks below it
  page_extent extent;
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
  bool any_order = false;              ///< otherwise the pages with the lowest addresses of a shard go first
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
  GPUMEM_REQUIRES(one_shard, all_shards) std::vector<page_run> find(page_query const& query);
  /// Takes pages out of the pool: makes their addresses a hole between blocks, and counts their bytes as being
  /// released. Returns these bytes. If the host has no memory for a hole, removes the remaining pages from `idle`: they
  /// stay in the pool.
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t detach(std::vector<page_run>& idle) noexcept;
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
  GPUMEM_REQUIRES(one_shard, all_shards) void coalesce_complete(address_range& in);
  GPUMEM_REQUIRES(one_shard, all_shards) std::vector<idle_run> find_runs(page_query const& query);
  // The pages that a search has found so far.
  struct found_pages {
    std::vector<page_run> runs;
    std::size_t bytes = 0, pages = 0, visited_ranges = 0;
    inline bool suffices(page_query const& query) const noexcept {
      return bytes >= query.wanted || pages >= query.max_pages;
    }
  };
  static void add_pages(found_pages& found, idle_run const& run, page_query const& query);
  GPUMEM_REQUIRES_SHARED(all_shards) bool is_on_one_list(page_query const& query) const noexcept;

  backend_parts& parts_;
};

/// Maps new pages or moves idle ones, and unmaps idle pages. An idle page has no live block, and all its uses are
/// complete. The pages go after the mapped addresses of an address range, or into holes between them. Pages move from
/// one shard to another. Where the driver has no addresses, a chunk takes the place of pages.
///
/// Time for moves: the pool begins without, and time in which calls come earns the share `effort`. A pause earns none,
/// nor does the time from it to the next growth. While time is saved, growth moves idle pages. Otherwise it makes few
/// new pages, free of charge. Idle pages that could have moved instead are the surplus. The library thread looks at the
/// pool ten times a second, until the pool pauses without a surplus. A look notes whether calls came, and unmaps some
/// of the surplus.
export class page_backend final : public pool_backend {
public:
  /// Keeps references to all arguments.
  page_backend(pool_upstream& upstream, pool_options const& options, std::optional<device> where, reuse_rules& rules,
               chunk_list& chunks, shard_list& shards, reserved_observer& watcher) noexcept;

  GPUMEM_REQUIRES_SHARED(all_shards) bool could_hold(std::size_t bytes, std::size_t alignment) const noexcept override;
  GPUMEM_REQUIRES(one_shard, all_shards)
  attempt<placement> grow(allocation_request const& request, bool exact) override;
  GPUMEM_REQUIRES(one_shard, all_shards) placement move_at_limit(allocation_request const& request) override;
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t release(std::size_t keep) noexcept override;
  GPUMEM_REQUIRES(one_shard, all_shards) void release_for(allocation_request const& request) override;
  GPUMEM_REQUIRES(one_shard, all_shards) address_range& open_range(std::size_t bytes) override;
  GPUMEM_REQUIRES(one_shard, all_shards) void close_range(address_range& range) noexcept override;
  GPUMEM_REQUIRES(one_shard, all_shards) void look(std::uint64_t calls) noexcept override;
  GPUMEM_REQUIRES(one_shard, all_shards) CUresult open_to(device peer) override;
  GPUMEM_REQUIRES(one_shard, all_shards) bool pin(void const* pointer, std::size_t bytes) override;
  GPUMEM_REQUIRES(one_shard, all_shards) void unpin(void const* pointer, std::size_t bytes) override;
  GPUMEM_REQUIRES(one_shard, all_shards) expected<exported_page, failure> export_page(void const* pointer) override;

private:
  GPUMEM_REQUIRES(one_shard, all_shards)
  expected<block*, failure> reserve(std::size_t bytes, pool_shard& shard) override;
  // Returns whether a pool that has failed to grow for the reason `failure` gets a chunk instead.
  bool takes_chunks_after(failure const& failure) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) attempt<placement> grow_pages(allocation_request const& request, bool exact);
  // Maps pages in the address range of a borrower, as the terms of the request say.
  GPUMEM_REQUIRES(one_shard, all_shards) attempt<placement> lend(allocation_request const& request, bool exact);
  // Maps `bytes` bytes of pages after the mapped addresses of the shard `into`.
  GPUMEM_REQUIRES(one_shard, all_shards) expected<block*, failure> reserve_pages(std::size_t bytes, pool_shard& into);
  // Gives the addresses of closed ranges back, as far as no page is mapped there.
  GPUMEM_REQUIRES(one_shard, all_shards) void drop_closed_ranges() noexcept;
  // Waits while another thread changes pages. Returns the pages of the shard that holds `pointer`; null if it lies in a
  // chunk or is not in the pool.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual_pages* pages_of(void const* pointer);
  GPUMEM_REQUIRES(all_shards) void begin_looks() noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t surplus_within(std::size_t bytes, std::uintptr_t excluded = 0);
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t release_surplus(bool paused) noexcept;
  GPUMEM_REQUIRES(all_shards) std::size_t affordable_pages(sync::time_point now = sync::now()) noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t unpaid_pages(std::size_t bytes) const noexcept;
  GPUMEM_REQUIRES(all_shards) void charge_moves(std::size_t pages) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void poll_for_moves(allocation_request const& request);
  // The blocks at the addresses of a loan, and the runs there that are not mapped.
  struct loan_site {
    block* first = nullptr; // the lowest block; null: nothing is mapped there
    block* last = nullptr;
    std::vector<page_extent> unmapped;
    std::size_t missing = 0;                  // bytes of all these runs
    bool lent = false;                        // a block there is live
    reuse_tier how = reuse_tier::same_stream; // the costliest tier by which the stream may have a block there
  };
  GPUMEM_REQUIRES(one_shard) static std::optional<page_extent> loan_extent(allocation_request const& request) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) loan_site look_at(page_extent extent, allocation_request const& request) const;
  static growth_plan loan_plan(loan_site const& site, allocation_request const& request) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards)
  attempt<placement> join_site(page_extent extent, allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards)
  std::vector<page_run> pages_for_loan(page_extent extent, allocation_request const& request, std::size_t room);
  GPUMEM_REQUIRES(one_shard, all_shards)
  void move_to_loan(page_extent extent, loan_site const& site, allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void release_for_loan(allocation_request const& request);
  stream_uses fresh_uses(allocation_request const& request) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) placement placement_in(block& fresh, allocation_request const& request) const;
  GPUMEM_REQUIRES(one_shard, all_shards) placement move(allocation_request const& request, bool at_limit);
  GPUMEM_REQUIRES(one_shard, all_shards) bool may_move() const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) pool_shard& growing_shard(allocation_request const& request) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) bool wants_addresses(pool_shard const& in) const;
  GPUMEM_REQUIRES(one_shard, all_shards) std::optional<failure> add_addresses(pool_shard& into, std::size_t least);
  GPUMEM_REQUIRES(one_shard, all_shards) bool wait_for_own_work(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards)
  std::size_t pages_in_use_by(stream_timeline const& stream, allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards)
  expected<block*, failure> map(growth_plan const& plan, stream_uses const& uses, loan_terms const* loan = nullptr);
  GPUMEM_REQUIRES(one_shard, all_shards)
  expected<block*, failure> accept(address_range& into, expected<page_extent, failure> const& made,
                                   stream_uses const& uses);
  GPUMEM_REQUIRES(one_shard, all_shards)
  block& add(address_range& into, page_extent const& extent, stream_uses const& uses);
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t release_idle(page_query const& query) noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t lacking(std::size_t bytes) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards)
  std::size_t make_room(allocation_request const& request, std::optional<growth_plan> const& plan, std::size_t given);

  // A shard gets further addresses only when it cannot grow without: the driver has refused some, or the option
  // `address_space` sets the size of the only address range of a shard.
  bool short_of_addresses_ GPUMEM_GUARDED_BY(all_shards);
  idle_pages idle_;
  time_budget move_budget_
      GPUMEM_GUARDED_BY(all_shards); // time for moves, for polls and waits before them, and for small pages
  std::uint64_t seen_calls_ GPUMEM_GUARDED_BY(all_shards) = 0; // at the last look
  std::size_t surplus_ GPUMEM_GUARDED_BY(all_shards) = 0;      // in bytes
  page_price price_ GPUMEM_GUARDED_BY(all_shards);
  // Work for which a request has waited as long as the budget allowed, but which was not complete then. Until it is
  // complete, no request waits again.
  stream_use given_up_ GPUMEM_GUARDED_BY(all_shards);
};

} // namespace gpumem::detail
