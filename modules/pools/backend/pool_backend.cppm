// The part of a pool that gets memory from the upstream and gives it back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:pool_backend;
import :allocation_request;
import :attempt;
import :block;
import :chunk;
import :chunk_list;
import :device;
import :error;
import :growth_policy;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :std;
import :stream;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Gets chunks from the upstream, or maps pages at the end of a shard's addresses and in holes, and gives back unused
/// memory. Calls that change anything need the locks of all shards. Those that take `held` unlock it during waits and
/// calls upstream; one thread at a time grows the pool or changes its pages. Reads need the lock of any shard;
/// `paged`, `where` and `lost` need none. Sizes are in bytes.
export class pool_backend {
public:
  /// Is told of each change of the reserved bytes before the locks are unlocked.
  class observer {
  public:
    virtual void on_reserved_changed() noexcept = 0;

  protected:
    ~observer() = default;
  };

  /// Keeps references to all arguments.
  pool_backend(pool_upstream& upstream, pool_options const& options, reuse_rules& rules, chunk_list& chunks,
               shard_list& shards, observer& watcher);

  inline bool paged() const noexcept { return upstream_.paged(); }
  /// Returns the upstream's device; nullopt if the upstream has none.
  inline std::optional<device> where() const noexcept { return device_; }
  inline bool lost() const noexcept { return device_ && device_->lost(); }
  inline growth_policy const& growth() const noexcept { return growth_; }

  /// Waits while another thread allocates a chunk, or maps, moves or unmaps pages. Returns whether it waited.
  bool wait_for_growth(all_shards_lock& held);
  inline bool growing() const noexcept { return growing_; }
  /// Gets memory for a request, and coalesces it with free neighbours; no other thread may be growing. Unless `exact`,
  /// gets some to spare. Must be retried after a search if that is not enough or if it had to wait for a release. A
  /// failure carries the requested bytes; too_large from the upstream becomes exhausted. Throws std::bad_alloc.
  attempt<placement> grow(allocation_request const& request, all_shards_lock& held, bool exact);
  /// Gets memory until `bytes` are reserved. Returns the bytes that were missing, or the upstream's failure. Throws
  /// std::bad_alloc.
  expected<std::size_t, failure> grow_to(std::size_t bytes, pool_shard& into, all_shards_lock& held);
  /// Moves a chunk from another shard to the request's shard: one that is a single free range, large enough, which the
  /// stream may use at once. Returns the place in it; empty if there is no such chunk.
  placement migrate_chunk(allocation_request const& request);

  /// Gives back unused memory whose uses the host has seen complete, as long as at least `keep` bytes remain. Returns
  /// the bytes given back.
  std::size_t release(std::size_t keep, all_shards_lock& held) noexcept;
  /// Moves unused pages together for a request that the pool cannot grow for. Returns the place in them; empty, and
  /// nothing is moved, if they are not enough. Throws std::bad_alloc.
  placement move_at_limit(allocation_request const& request, all_shards_lock& held);
  /// Gives unused memory back so that the pool can grow for the request: as many pages as are missing, or all unused
  /// chunks. Throws std::bad_alloc.
  void release_for(allocation_request const& request, all_shards_lock& held);
  /// Marks the pool as closed: it has no users any more. From then on memory on a lost device counts as complete, and
  /// unused memory is given back whatever stream freed it.
  void set_closed() noexcept { closed_ = true; }
  inline bool closed() const noexcept { return closed_; }

  /// See pool_engine. All three wait as wait_for_growth() does.
  bool pin(void const* pointer, std::size_t bytes, all_shards_lock& held);
  void unpin(void const* pointer, std::size_t bytes, all_shards_lock& held);
  expected<int, failure> export_page(void const* pointer, all_shards_lock& held);

private:
  // Adjacent free blocks whose uses are complete, as one run of addresses.
  struct idle_run {
    pool_shard* in;
    block* last; // the highest of the blocks
    std::uintptr_t begin, end;
    inline std::size_t bytes() const noexcept { return end - begin; }
  };
  // Adjacent whole pages of an idle run, by offset in the shard's pages.
  struct page_run {
    pool_shard* shard;
    block* last; // the block in which the pages end; it and blocks below it hold them
    page_extent where;
    std::size_t pages = 1;
  };
  static void append(std::vector<page_run>& runs, page_run const& next);
  // Which whole pages of idle runs to find: until `wanted` bytes are found, `max_bytes` and `max_pages` at most.
  struct page_query {
    std::size_t wanted;
    std::size_t least = 0; // if there are fewer bytes, no page is found
    std::size_t max_bytes = SIZE_MAX;
    std::uintptr_t excluded = 0; // an address in the block that stays; 0: none
    pool_shard* in = nullptr;    // only pages of this shard; null: of all shards
    std::size_t smallest = 0;    // bytes of a page
    std::size_t max_pages = SIZE_MAX;
  };

  // On a lost device no work runs any more and no use is seen complete: a closed pool then gives back all memory.
  inline bool device_gone() const noexcept { return closed_ && lost(); }
  void wait_for_release(all_shards_lock& held);
  void end_growth() noexcept;
  void count_growth(pool_shard& into, std::size_t bytes) noexcept;

  attempt<placement> grow_chunk(allocation_request const& request, all_shards_lock& held, bool exact);
  expected<block*, failure> allocate_chunk(stream_key const& key, pool_shard& into, std::size_t bytes,
                                           std::size_t least, all_shards_lock& held);
  block& add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes);
  bool idle_and_complete(chunk const& parent) const noexcept;
  std::size_t release_chunks(std::size_t keep, all_shards_lock& held) noexcept;

  // pool_backend_pages.cpp
  attempt<placement> grow_pages(allocation_request const& request, all_shards_lock& held, bool exact);
  std::size_t affordable_pages() noexcept;
  void charge_moves(std::size_t pages) noexcept;
  void poll_for_moves(allocation_request const& request);
  stream_uses fresh_uses(allocation_request const& request) const noexcept;
  placement placement_in(block& fresh, allocation_request const& request) const;
  placement move_pages(allocation_request const& request, all_shards_lock& held, bool at_limit);
  bool may_move(allocation_request const& request) const noexcept;
  expected<block*, failure> map_pages(pool_shard& into, growth_plan const& plan, stream_uses const& uses,
                                      all_shards_lock& held);
  expected<block*, failure> accept_pages(pool_shard& into, expected<page_extent, failure> const& made,
                                         stream_uses const& uses, all_shards_lock& held);
  block& add_pages(pool_shard& into, page_extent const& where, stream_uses const& uses);
  virtual_pages* pages_of(void const* pointer, all_shards_lock& held);

  // pool_backend_idle.cpp
  void coalesce_complete(pool_shard& in);
  std::vector<idle_run> idle_runs(std::uintptr_t excluded);
  std::vector<page_run> idle_pages(page_query const& query);
  std::size_t detach_pages(std::vector<page_run>& idle) noexcept;
  static std::size_t pages_in(std::vector<page_run> const& runs) noexcept;
  static void unmap(std::vector<page_run> const& detached) noexcept;
  std::size_t release_idle(page_query const& query, all_shards_lock& held) noexcept;
  std::size_t lacking(std::size_t bytes) const noexcept { return bytes - std::min(bytes, chunks_.headroom()); }
  std::size_t evict_pages(allocation_request const& request, std::optional<growth_plan> const& plan, std::size_t given,
                          all_shards_lock& held);

  pool_upstream& upstream_;
  pool_options const& options_;
  std::optional<device> const device_;
  reuse_rules& rules_;
  chunk_list& chunks_;
  shard_list& shards_;
  observer& observer_;

  growth_policy growth_;
  time_budget move_budget_;      // for moves, for polls before them, and for new pages
  sync::spin_condition changed_; // notified when growing_ or chunks_.releasing() changes
  bool growing_ = false;
  bool closed_ = false;
};

} // namespace gpumem::detail
