// Frees of blocks into their shards, the events that they record, and frees inside a capture.
// SPDX-License-Identifier: Apache-2.0
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

namespace gpumem::detail {

/// Decides which frees of a pool record an event. The event shows other streams and the host when the work on the block
/// is complete. It is recorded only if the call may use the stream's handle: the caller has passed it, or the stream's
/// owner keeps the stream alive.
export class free_events {
public:
  explicit free_events(pool_parts& parts) noexcept : parts_{parts} {}

  /// Records an event for a free if another stream or the host may soon want memory. `use`: the stream of the free and
  /// its present epoch. `bytes`: the size of the block. Returns the use with the epoch of the event, or `use` itself if
  /// none was recorded. The caller holds the lock of `shard`, the block's shard.
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline stream_use
  record_if_due(stream_key const& key, stream_use const& use, std::size_t bytes, pool_shard& shard) noexcept {
    bool const many = parts_.mode.multi_stream() && passes_threshold(*use.timeline, bytes, shard);
    return many || use.timeline->event_request().raised() || parts_.mode.under_pressure() ? record(key, use) : use;
  }
  /// Records an event on the stream of the use, and returns the use with the epoch of the event. Records none, and
  /// returns `use` itself, in three cases: if the call has no handle of the stream, if memory stays with its stream
  /// (reuse_policy::ordered), and on an error.
  stream_use record(stream_key const& key, stream_use const& use) noexcept;

private:
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] bool
  passes_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& shard) noexcept;

  pool_parts& parts_;
};

/// Puts freed blocks on the lists of their shards. The blocks come from callers, from thread caches and from remote
/// frees. Allocates no host memory.
export class shard_frees {
public:
  explicit shard_frees(pool_parts& parts) noexcept : parts_{parts} {}

  // The next functions are called under the lock of the block's shard.
  /// Puts a small block on a quick list. Puts any other block on a free list, and coalesces it. The stream uses
  /// of the block stay with the memory, so later uses are ordered after them.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  free_block(block& returned) noexcept;
  /// Frees a block that was in a thread cache. The cache has counted the free, so this does not.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  free_cached_block(block& cached) noexcept;
  /// Returns whether a freed block goes to a quick list.
  [[clang::requires_shared_capability(all_shards)]] inline bool
  goes_to_quick_list(block const& returned) const noexcept {
    // Memory that the host can touch goes there only if no stream may still use it.
    auto const max_streams = parts_.rules.host_accessible() ? 0u : 1u;
    return returned.bytes <= size_class::largest_small && parts_.mode.fast_path() &&
           returned.uses.size() <= max_streams;
  }
  /// Completes the remote frees of a shard. The caller holds that shard's lock, which is enough while
  /// pool_mode::fast_path() returns true. Otherwise the caller holds the locks of all shards.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] inline void
  drain_remote_frees(pool_shard& shard) noexcept {
    if (!shard.remote_frees.empty()) drain(shard);
  }

  // The next functions are called under the locks of all shards.
  [[clang::requires_capability(one_shard, all_shards)]] inline void drain_all_remote_frees() noexcept {
    for (auto const& each : parts_.shards.all()) drain_remote_frees(*each);
  }
  /// Moves the blocks of all thread caches and quick lists to the free lists. Returns whether there were such blocks.
  [[clang::requires_capability(one_shard, all_shards)]] bool flush_thread_caches() noexcept;
  /// Moves the blocks of all thread caches to the free lists if caching is off. Caching is off while the reserved bytes
  /// exceed the release threshold by more than an eighth. A request that grows the pool calls this only after it has
  /// taken its block from the new memory. Before that, a moved block could coalesce with the range in which the place
  /// of the request's block was found.
  [[clang::requires_capability(one_shard, all_shards)]] void flush_beyond_threshold() noexcept;

private:
  [[clang::requires_shared_capability(all_shards)]] range_allocator::coalescing
  coalescing_of(block const& returned) const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void check_thresholds(block const& range) noexcept;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  drain(pool_shard& shard) noexcept;

  pool_parts& parts_;
};

/// The blocks that were freed on capturing streams. The pool records no event on such a stream, and the captured work
/// has not run. So the blocks stay out of use until the next call outside a capture completes the frees. Guarded by the
/// locks of all shards.
export class deferred_frees {
public:
  /// Keeps references to both.
  deferred_frees(pool_parts& parts, shard_frees& frees) noexcept : parts_{parts}, frees_{frees} {}

  [[clang::requires_shared_capability(all_shards)]] inline bool any() const noexcept { return first_ != nullptr; }
  [[clang::requires_capability(one_shard, all_shards)]] void add(block& returned, stream_key const& key) noexcept;
  /// Completes all deferred frees. `now`: the stream of the current call; null if it has none. If the call was given
  /// the handle of that stream, an event can be recorded on it.
  [[clang::requires_capability(one_shard, all_shards)]] inline void run(stream_key const* now) noexcept {
    if (first_) [[unlikely]]
      run_all(now);
  }

private:
  [[clang::requires_capability(one_shard, all_shards)]] void run_all(stream_key const* now) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  block* first_ __attribute__((guarded_by(all_shards))) = nullptr;
};

} // namespace gpumem::detail
