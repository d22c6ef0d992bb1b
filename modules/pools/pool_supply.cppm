// How a pool draws from its upstream, and gives back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <gpumem/pool_options.hpp>
export module gpumem:pool_supply;
import :block;
import :chunks;
import :device;
import :error;
import :page_growth;
import :pool_order;
import :pool_request;
import :shards;
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
export class pool_supply {
public:
  /// Whom it concerns how much is reserved: is told of each change before the locks are given up.
  class listener {
  public:
    virtual void note_reserved() noexcept = 0;

  protected:
    ~listener() = default;
  };

  /// Refers to all but the upstream, which it keeps.
  pool_supply(std::unique_ptr<pool_upstream> upstream, pool_options const& options, pool_order const& order,
              shard_list& shards, listener& told);

  inline pool_upstream& upstream() noexcept { return *upstream_; }
  inline bool paged() const noexcept { return upstream_->paged(); }
  /// None over upstreams without one.
  inline std::optional<device> where() const noexcept { return device_; }
  inline bool lost() const noexcept { return device_ && device_->lost(); }
  inline chunk_list const& chunks() const noexcept { return chunks_; }
  inline page_growth const& growth() const noexcept { return growth_; }
  void set_limit(std::size_t bytes) noexcept { chunks_.set_limit(bytes); }

  /// Waits while another thread draws or gives back; whether one did.
  bool wait_for_growth(shard_locks& held);
  inline bool growing() const noexcept { return growing_; }
  /// Draws memory for a request, `exact` or with some to spare, while no other thread does, and joins it with what is
  /// free beside it; an empty place where that is not enough, or memory has left meanwhile: look again. A failure
  /// carries the bytes requested; what is too large for upstream is exhausted. Throws std::bad_alloc.
  expected<pool_place, failure> grow(pool_request const& what, shard_locks& held, bool exact);
  /// Draws until so many bytes are reserved; how many were missing. A failure is upstream's. Throws std::bad_alloc.
  expected<std::size_t, failure> grow_to(std::size_t bytes, pool_shard& into, shard_locks& held);
  /// A chunk out of another thread's shard, wholly free and one, that the stream may use at once; it is the
  /// requester's from now on.
  pool_place adopt(pool_request const& what);

  /// Gives back unused memory, of which the host has seen every use complete, as long as at least `keep` bytes remain.
  /// Returns the bytes given back.
  std::size_t give_back(std::size_t keep, shard_locks& held) noexcept;
  /// Moves unused pages to the place of a request for whose growth there is no room. Returns an empty place, and moves
  /// nothing, if they are not enough. Throws std::bad_alloc.
  pool_place move_at_limit(pool_request const& what, shard_locks& held);
  /// Gives unused memory back for a request for whose growth there is no room: as many pages as it lacks, or all
  /// chunks. Throws std::bad_alloc.
  void give_back_for(pool_request const& what, shard_locks& held);
  /// The pool has no users any more: what is on a lost device is over, and streams have no memory of their own.
  void note_closed() noexcept { closed_ = true; }
  inline bool closed() const noexcept { return closed_; }

  /// As pool_engine's; they wait while memory is drawn or given back.
  bool pin(void const* pointer, std::size_t bytes, shard_locks& held);
  void unpin(void const* pointer, std::size_t bytes, shard_locks& held);
  expected<int, failure> export_page(void const* pointer, shard_locks& held);

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
  struct page_wish {
    std::size_t wanted;
    std::size_t least = 0; // none if there are fewer bytes than that
    std::size_t most = SIZE_MAX;
    std::uintptr_t spared = 0; // where a block begins that stays
    pool_shard* in = nullptr;  // of it alone; null: of all
    std::size_t smallest = 0;
    std::size_t most_pages = SIZE_MAX;
  };

  // On a lost device nothing runs any more and nothing is seen to complete: a closed pool returns what it owes.
  inline bool over() const noexcept { return closed_ && lost(); }
  void wait_for_return(shard_locks& held);
  void end_growth() noexcept;
  void note_growth(pool_shard& into, std::size_t bytes) noexcept;

  expected<pool_place, failure> grow_chunk(pool_request const& what, shard_locks& held, bool exact);
  expected<block*, failure> draw_chunk(stream_key const& key, pool_shard& into, std::size_t bytes, std::size_t least,
                                       shard_locks& held);
  block& add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes);
  bool idle_and_complete(chunk const& home) const noexcept;
  std::size_t give_back_chunks(std::size_t keep, shard_locks& held) noexcept;

  // pool_supply_pages.cpp
  expected<pool_place, failure> grow_pages(pool_request const& what, shard_locks& held, bool exact);
  std::size_t affordable_pages() noexcept;
  void pay(std::size_t pages) noexcept;
  void look_for_moves(pool_request const& what);
  tag_set fresh_tags(pool_request const& what) const noexcept;
  pool_place place_in(block& fresh, pool_request const& what) const;
  pool_place move_pages(pool_request const& what, shard_locks& held, bool at_limit);
  bool may_move(pool_request const& what) const noexcept;
  expected<block*, failure> draw_pages(pool_shard& into, growth_plan const& plan, tag_set const& tags,
                                       shard_locks& held);
  expected<block*, failure> take_pages(pool_shard& into, expected<page_extent, failure> const& made,
                                       tag_set const& tags, shard_locks& held);
  block& add_pages(pool_shard& into, page_extent const& where, tag_set const& tags);
  virtual_pages* pages_of(void const* pointer, shard_locks& held);

  // pool_supply_idle.cpp
  void join_complete(pool_shard& in);
  std::vector<idle_run> idle_runs(std::uintptr_t spared);
  std::vector<page_run> idle_pages(page_wish const& what);
  std::size_t carve_out(std::vector<page_run>& idle) noexcept;
  static std::size_t pages_in(std::vector<page_run> const& runs) noexcept;
  static void unmap(std::vector<page_run> const& carved) noexcept;
  std::size_t give_back_idle(page_wish const& what, shard_locks& held) noexcept;
  std::size_t lacking(std::size_t bytes) const noexcept { return bytes - std::min(bytes, chunks_.room()); }
  std::size_t make_way(pool_request const& what, std::optional<growth_plan> const& plan, std::size_t given,
                       shard_locks& held);

  std::unique_ptr<pool_upstream> const upstream_;
  pool_options const& options_;
  std::optional<device> const device_;
  pool_order const& order_;
  shard_list& shards_;
  listener& told_;

  chunk_list chunks_;
  page_growth growth_;
  time_budget moves_;             // and the pages that are made instead
  sync::quick_condition changed_; // growth ended, or memory has left
  bool growing_ = false;
  bool closed_ = false;
};

} // namespace gpumem::detail
