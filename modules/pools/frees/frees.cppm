// Frees of blocks into their shards, and frees inside a capture.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:frees;
import :block;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Puts freed blocks on the lists of their shards. The blocks come from callers, from thread caches and from remote
/// frees. Keeps the frees inside a capture until they can be completed. Allocates no host memory.
export class shard_frees {
public:
  explicit shard_frees(pool_parts& parts) noexcept : parts_{parts} {}

  // The next functions are called under the lock of the block's shard.
  /// Puts a small block on a quick list. Puts any other block on a free list, and coalesces it. The stream uses
  /// of the block stay with the memory, so later uses are ordered after them.
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void free_block(block& returned) noexcept;
  /// Frees a block that was in a thread cache. The cache has counted the free, so this does not.
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void free_cached_block(block& cached) noexcept;
  /// Frees a block that a thread cache has evicted. Wakes the threads in flush_for_request().
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void free_evicted_block(block& evicted) noexcept;
  /// Returns whether a freed block goes to a quick list.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool goes_to_quick_list(block const& returned) const noexcept {
    // Memory that the host can touch goes there only if no stream may still use it.
    auto const max_streams = parts_.rules.host_accessible() ? 0u : 1u;
    return returned.bytes <= size_class::largest_small && parts_.mode.fast_path() &&
           returned.uses.size() <= max_streams;
  }
  /// Completes the remote frees of a shard. The caller holds that shard's lock, which is enough while
  /// pool_mode::fast_path() returns true. Otherwise the caller holds the locks of all shards.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) inline void drain_remote_frees(pool_shard& shard) noexcept {
    if (!shard.remote_frees.empty()) drain(shard);
  }

  // The next functions are called under the locks of all shards.
  GPUMEM_REQUIRES(one_shard, all_shards) inline void drain_all_remote_frees() noexcept {
    for (auto const& each : parts_.shards.all()) drain_remote_frees(*each);
  }
  /// Moves the blocks of all thread caches and quick lists to the free lists. Returns whether there were such blocks.
  GPUMEM_REQUIRES(one_shard, all_shards) bool flush_thread_caches() noexcept;
  /// Moves the blocks of all thread caches to the free lists if caching is off. Caching is off while the reserved bytes
  /// exceed the release threshold by more than an eighth. A request that grows the pool calls this only after it has
  /// taken its block from the new memory. Before that, a moved block could coalesce with the range in which the place
  /// of the request's block was found.
  GPUMEM_REQUIRES(one_shard, all_shards) void flush_beyond_threshold() noexcept;
  /// Turns the thread caches off for a request that found no memory, and moves their blocks to the free lists. Then
  /// waits, with the shards unlocked, until no evicted block is on its way to the free lists.
  GPUMEM_REQUIRES(one_shard, all_shards) void flush_for_request();

  /// Keeps a block that was freed on a capturing stream out of use until a call outside the capture completes the free.
  /// The pool records no event on such a stream, and the captured work has not run.
  GPUMEM_REQUIRES(one_shard, all_shards) void defer(block& returned, stream_key const& key) noexcept;
  /// Returns whether there are deferred frees.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool any_deferred() const noexcept { return deferred_ != nullptr; }
  /// Completes all deferred frees. `now`: the stream of the current call; null if it has none. If the call was given
  /// the handle of that stream, an event can be recorded on it.
  GPUMEM_REQUIRES(one_shard, all_shards) inline void run_deferred(stream_key const* now) noexcept {
    if (deferred_) [[unlikely]]
      run_all_deferred(now);
  }

private:
  GPUMEM_REQUIRES_SHARED(all_shards) range_allocator::coalescing coalescing_of(block const& returned) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void check_thresholds(block const& range) noexcept;
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void drain(pool_shard& shard) noexcept;

  GPUMEM_REQUIRES(one_shard, all_shards) void run_all_deferred(stream_key const* now) noexcept;

  pool_parts& parts_;
  block* deferred_ GPUMEM_GUARDED_BY(all_shards) = nullptr; // linked by `next`
  unsigned flushing_ GPUMEM_GUARDED_BY(all_shards) = 0;     // threads that wait in flush_for_request()
  sync::spin_condition evicted_freed_;
};

} // namespace gpumem::detail
