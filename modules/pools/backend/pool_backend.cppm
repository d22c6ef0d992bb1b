// Growth and release of a pool's memory by chunks, and the interface of the backend of pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:pool_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :device;
import :error;
import :page_store;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :range_search;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :sync;

namespace gpumem::detail {

/// Gets chunks from the upstream, and gives back unused memory. A page_backend gets pages, and chunks only where the
/// driver has no addresses. Functions that change the pool need the locks of all shards, and unlock them during waits
/// and calls of the upstream. One thread at a time grows the pool or changes its pages. Reads need the lock of any
/// shard; paged() needs none. Sizes are in bytes.
export class pool_backend {
public:
  /// Keeps references to all arguments.
  pool_backend(pool_upstream& upstream, pool_options const& options, std::optional<device> where, reuse_rules& rules,
               chunk_list& chunks, shard_list& shards, reserved_observer& watcher)
      : parts_{upstream, options, where, rules, chunks, shards, watcher} {}
  virtual ~pool_backend() = default;

  /// Returns whether this is a page_backend, so that free memory can move to where a request needs it.
  inline bool paged() const noexcept { return parts_.upstream.paged(); }

  /// Returns the most bytes that the pool can have reserved under its limit: whole pages, or whole granules.
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t capacity() const noexcept;
  /// Returns whether the pool could serve a request for a block if no other block were live. `bytes`: rounded up as
  /// when memory is short.
  GPUMEM_REQUIRES_SHARED(all_shards) virtual bool could_hold(std::size_t bytes, std::size_t alignment) const noexcept;
  /// Returns whether a chunk of the pool could hold the block if no other block were live. False in a pool of pages.
  GPUMEM_REQUIRES_SHARED(all_shards) bool has_chunk_for(std::size_t bytes, std::size_t alignment) const noexcept;

  /// Waits while another thread gets a chunk, or maps, moves or unmaps pages. Returns whether it waited.
  GPUMEM_REQUIRES(one_shard, all_shards) bool wait_for_growth() { return parts_.lock.wait(); }
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool growing() const noexcept { return parts_.lock.taken(); }
  /// Gets memory for a request, and joins it with free neighbours. No other thread may be growing the pool. Unless
  /// `exact`, gets more memory than the request needs. The result is retry() if the new memory is not enough, or if the
  /// call waited for another thread to release memory. The caller then searches before it tries again. A failure
  /// carries the requested bytes. Its reason is too_large if the upstream of a pool of chunks can never give as many
  /// bytes as the request needs. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual attempt<placement> grow(allocation_request const& request, bool exact);
  /// Gets memory until `bytes` are reserved. Returns how many bytes it got, or the upstream's failure. Throws
  /// std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) expected<std::size_t, failure> grow_to(std::size_t bytes, pool_shard& into);
  /// Counts `bytes` that another source is about to give toward the pool's limit, after the growth in progress has
  /// ended. Returns false, and counts nothing, if the limit would be exceeded.
  GPUMEM_REQUIRES(one_shard, all_shards) bool add_outside(std::size_t bytes);
  /// Moves a chunk from another shard to the request's shard. The chunk must be a single free range that is large
  /// enough and that the stream may use immediately. Returns the place of the request's block in the chunk. If there is
  /// no such chunk, or in a pool of pages, returns an empty place.
  GPUMEM_REQUIRES(one_shard, all_shards) placement migrate_chunk(allocation_request const& request);

  /// Gives back unused memory whose uses the host has seen complete, as long as at least `keep` bytes remain. Returns
  /// the bytes given back.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual std::size_t release(std::size_t keep) noexcept;
  /// Moves unused pages together for a request for which the pool cannot grow. Returns the place of the request's block
  /// in those pages. If the pages are not enough, or in a pool of chunks, moves none and returns an empty place. Throws
  /// std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual placement move_at_limit(allocation_request const&) { return {}; }
  /// Gives unused memory back, so that the pool can grow for the request: as many pages as are missing, and, unless the
  /// request can park, all unused chunks. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual void release_for(allocation_request const& request);
  /// Makes wants_release() true if there is an unused chunk: a pass of the library thread then gives back all of them.
  /// For a request whose thread must not wait for that. Returns wants_release().
  GPUMEM_REQUIRES(one_shard, all_shards) bool ask_for_release() noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool wants_release() const noexcept { return wants_release_; }
  /// In a pool of pages, gives surplus pages back in time: see page_backend. Looks at the pool if next_look() has
  /// passed. `calls`: the number of calls that the pool has had.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual void look(std::uint64_t /*calls*/) noexcept {}
  /// Returns when the library thread is to call look(); nullopt: not before the next growth.
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::optional<sync::time_point> next_look() const noexcept {
    return next_look_;
  }
  /// Called by the pass that gives the chunks back.
  GPUMEM_REQUIRES(all_shards) void begin_wanted_release() noexcept { wants_release_ = false; }
  /// Returns whether memory is on its way back to the upstream. The pool can grow by it afterwards.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool is_releasing() const noexcept {
    return wants_release_ || parts_.chunks.releasing() > 0;
  }
  /// Marks the pool as closed: it has no users any more. From then on free ranges whose uses are complete are joined
  /// also with reuse_policy::ordered. Until then that policy keeps each range for the stream that freed it. If the
  /// device is lost, all memory counts as unused.
  GPUMEM_REQUIRES(all_shards) void set_closed() noexcept { parts_.closed = true; }
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool closed() const noexcept { return parts_.closed; }

  /// Reserves `bytes` bytes of addresses for a borrower. Throws std::invalid_argument in a pool of chunks, cuda_error
  /// and std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual address_range& open_range(std::size_t bytes);
  /// Gives these addresses back as soon as no page is mapped there. The borrower has freed all blocks there.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual void close_range(address_range&) noexcept {}

  /// open_to() lets the device `peer` use the pool's pages. pin() keeps the pages of these bytes mapped in place until
  /// unpin() was called as often as pin(). It returns false if a byte is not the pool's. export_page() returns the
  /// page that holds `pointer`, with a file descriptor of it, or invalid_argument if the pool has no such page. All
  /// four functions wait while another thread changes pages.
  GPUMEM_REQUIRES(one_shard, all_shards) virtual CUresult open_to(device peer);
  GPUMEM_REQUIRES(one_shard, all_shards) virtual bool pin(void const* pointer, std::size_t bytes);
  GPUMEM_REQUIRES(one_shard, all_shards) virtual void unpin(void const* pointer, std::size_t bytes);
  GPUMEM_REQUIRES(one_shard, all_shards) virtual expected<exported_page, failure> export_page(void const* pointer);

protected:
  /// Gets memory of `bytes` bytes for the shard. Returns the free range that holds it.
  GPUMEM_REQUIRES(one_shard, all_shards)
  virtual expected<block*, failure> reserve(std::size_t bytes, pool_shard& shard);
  /// Returns whether the pool has a chunk that does not consist of pages.
  GPUMEM_REQUIRES_SHARED(all_shards) bool has_chunks() const noexcept;
  /// Returns the chunk that holds these bytes; null if a byte is not the pool's.
  GPUMEM_REQUIRES(one_shard, all_shards) chunk* chunk_of(void const* pointer, std::size_t bytes);

  backend_parts parts_;
  std::optional<sync::time_point> next_look_ GPUMEM_GUARDED_BY(all_shards); // none in a pool of chunks

private:
  GPUMEM_REQUIRES(one_shard, all_shards)
  expected<block*, failure> allocate_chunk(stream_key const& key, pool_shard& shard, std::size_t bytes,
                                           std::size_t least);
  GPUMEM_REQUIRES(one_shard, all_shards)
  block& add_chunk(stream_key const& key, pool_shard& shard, void* base, std::size_t bytes);
  GPUMEM_REQUIRES_SHARED(all_shards) chunk* idle_chunk(std::size_t keep) const noexcept;

  bool wants_release_ GPUMEM_GUARDED_BY(all_shards) = false;
};

} // namespace gpumem::detail
