// Frees of blocks into their shards.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shard_frees;
import :block;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :remote_frees;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :size_class;
import :std;
import :stream_uses;

namespace gpumem::detail {

/// Puts freed blocks on the lists of their shards: blocks that callers free, blocks that leave thread caches, and
/// remote frees. Allocates no host memory.
export class shard_frees {
public:
  explicit shard_frees(pool_parts& parts) noexcept : parts_{parts} {}

  // Under the lock of the block's shard.
  /// Puts a block on its quick list, or on a free list. A later use must be ordered after the block's uses.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  free_block(block& freed) noexcept;
  /// Frees a block that was in a thread cache. The cache has already counted its free.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  free_cached_block(block& cached) noexcept;
  /// Whether a freed block goes to a quick list instead of being coalesced.
  [[clang::requires_shared_capability(all_shards)]] inline bool goes_to_quick_list(block const& freed) const noexcept {
    auto const max_streams = parts_.rules.host_accessible() ? 0u : 1u; // the host has to wait for all streams
    return freed.bytes <= size_class::largest_small && parts_.mode.fast_path() && freed.uses.size() <= max_streams;
  }
  /// Completes the remote frees of a shard. The caller holds its lock, on the fast path, or the locks of all shards.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] inline void
  drain_remote_frees(pool_shard& in) noexcept {
    if (!in.remote_frees.empty()) drain(in);
  }

  // Under the locks of all shards.
  [[clang::requires_capability(one_shard, all_shards)]] inline void drain_all_remote_frees() noexcept {
    for (auto const& each : parts_.shards.all()) drain_remote_frees(*each);
  }
  /// Moves the blocks of all thread caches and quick lists to the free lists. Returns whether there were any.
  [[clang::requires_capability(one_shard, all_shards)]] bool flush_thread_caches() noexcept;
  /// Flushes the thread caches if caching is off, as it is beyond the release threshold. Called only after new memory
  /// is granted: a flushed neighbour could coalesce with it.
  [[clang::requires_capability(one_shard, all_shards)]] void flush_beyond_threshold() noexcept;

private:
  [[clang::requires_shared_capability(all_shards)]] range_allocator::coalescing
  coalescing_of(block const& freed) const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void check_thresholds(block const& range) noexcept;
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  drain(pool_shard& in) noexcept;

  pool_parts& parts_;
};

} // namespace gpumem::detail
