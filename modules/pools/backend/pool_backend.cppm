// How a pool draws from its upstream, and gives back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:pool_backend;
import :allocation_request;
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

/// Draws chunks, or pages behind what is free at the end of a shard's addresses and in holes, and gives back what
/// nobody uses. What changes anything is called under the locks of all shards; with `held` they are given up around
/// calls upstream, which one thread at a time makes, and for waits. What it tells may be read under any of them;
/// `upstream`, `paged`, `where`, `lost` and the limit by any thread. Sizes are in bytes.
export class pool_backend {
public:
  /// Whom it concerns how much is reserved: is told of each change before the locks are given up.
  class observer {
  public:
    virtual void on_reserved_changed() noexcept = 0;

  protected:
    ~observer() = default;
  };

  /// Refers to all but the upstream, which it keeps.
  pool_backend(std::unique_ptr<pool_upstream> upstream, pool_options const& options, reuse_rules const& rules,
               shard_list& shards, observer& watcher);

  inline pool_upstream& upstream() noexcept { return *upstream_; }
  inline bool paged() const noexcept { return upstream_->paged(); }
  /// None over upstreams without one.
  inline std::optional<device> where() const noexcept { return device_; }
  inline bool lost() const noexcept { return device_ && device_->lost(); }
  inline chunk_list const& chunks() const noexcept { return chunks_; }
  inline growth_policy const& growth() const noexcept { return growth_; }
  void set_limit(std::size_t bytes) noexcept { chunks_.set_limit(bytes); }

  /// Waits while another thread draws or gives back; whether one did.
  bool wait_for_growth(all_shards_lock& held);
  inline bool growing() const noexcept { return growing_; }
  /// Draws memory for a request, `exact` or with some to spare, while no other thread does, and joins it with what is
  /// free beside it; an empty place where that is not enough, or memory has left meanwhile: look again. A failure
  /// carries the bytes requested; what is too large for upstream is exhausted. Throws std::bad_alloc.
  expected<placement, failure> grow(allocation_request const& request, all_shards_lock& held, bool exact);
  /// Draws until so many bytes are reserved; how many were missing. A failure is upstream's. Throws std::bad_alloc.
  expected<std::size_t, failure> grow_to(std::size_t bytes, pool_shard& into, all_shards_lock& held);
  /// A chunk out of another thread's shard, wholly free and one, that the stream may use at once; it is the
  /// requester's from now on.
  placement migrate_chunk(allocation_request const& request);

  /// Gives back unused memory, of which the host has seen every use complete, as long as at least `keep` bytes remain.
  /// Returns the bytes given back.
  std::size_t release(std::size_t keep, all_shards_lock& held) noexcept;
  /// Moves unused pages to the place of a request for whose growth there is no room. Returns an empty place, and moves
  /// nothing, if they are not enough. Throws std::bad_alloc.
  placement move_at_limit(allocation_request const& request, all_shards_lock& held);
  /// Gives unused memory back for a request for whose growth there is no room: as many pages as it lacks, or all
  /// chunks. Throws std::bad_alloc.
  void release_for(allocation_request const& request, all_shards_lock& held);
  /// The pool has no users any more: what is on a lost device is over, and streams have no memory of their own.
  void set_closed() noexcept { closed_ = true; }
  inline bool closed() const noexcept { return closed_; }

  /// As pool_engine's; they wait while memory is drawn or given back.
  bool pin(void const* pointer, std::size_t bytes, all_shards_lock& held);
  void unpin(void const* pointer, std::size_t bytes, all_shards_lock& held);
  expected<int, failure> export_page(void const* pointer, all_shards_lock& held);

private:
  // Free memory side by side, by address.
  struct idle_run {
    pool_shard* in;
    block* last; // the highest of those that it is made of
    std::uintptr_t begin, end;
    inline std::size_t bytes() const noexcept { return end - begin; }
  };
  // Whole pages of such, by offset in the shard's pages.
  struct page_run {
    pool_shard* shard;
    block* last; // in which they end; it and those below it hold them
    page_extent where;
    std::size_t pages = 1;
  };
  static void append(std::vector<page_run>& runs, page_run const& next);
  // Whole pages of idle runs: until so many bytes are found, and never more than `most`.
  struct page_query {
    std::size_t wanted;
    std::size_t least = 0; // none if there are fewer bytes than that
    std::size_t max_bytes = SIZE_MAX;
    std::uintptr_t excluded = 0; // where a block begins that stays
    pool_shard* in = nullptr;    // of it alone; null: of all
    std::size_t smallest = 0;
    std::size_t max_pages = SIZE_MAX;
  };

  // On a lost device nothing runs any more and nothing is seen to complete: a closed pool returns what it owes.
  inline bool device_gone() const noexcept { return closed_ && lost(); }
  void wait_for_release(all_shards_lock& held);
  void end_growth() noexcept;
  void count_growth(pool_shard& into, std::size_t bytes) noexcept;

  expected<placement, failure> grow_chunk(allocation_request const& request, all_shards_lock& held, bool exact);
  expected<block*, failure> allocate_chunk(stream_key const& key, pool_shard& into, std::size_t bytes,
                                           std::size_t least, all_shards_lock& held);
  block& add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes);
  bool idle_and_complete(chunk const& parent) const noexcept;
  std::size_t release_chunks(std::size_t keep, all_shards_lock& held) noexcept;

  // pool_backend_pages.cpp
  expected<placement, failure> grow_pages(allocation_request const& request, all_shards_lock& held, bool exact);
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

  std::unique_ptr<pool_upstream> const upstream_;
  pool_options const& options_;
  std::optional<device> const device_;
  reuse_rules const& rules_;
  shard_list& shards_;
  observer& observer_;

  chunk_list chunks_;
  growth_policy growth_;
  time_budget move_budget_;      // and the pages that are made instead
  sync::spin_condition changed_; // growth ended, or memory has left
  bool growing_ = false;
  bool closed_ = false;
};

} // namespace gpumem::detail
