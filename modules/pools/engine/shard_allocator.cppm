// Allocation out of the free ranges of a pool's shards, and out of new memory.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shard_allocator;
import :block;
import :frees;
import :pool_parts;
import :pool_shard;
import :range_search;
import :shard_list;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// Finds a range for a request, or grows the pool for it, and allocates the block out of that range. Functions that
/// return a pointer return null if they find nothing. The attributes say which locks the caller holds. All functions
/// but steals_too_often() may throw std::bad_alloc.
export class shard_allocator {
public:
  /// Keeps references to both.
  shard_allocator(pool_parts& parts, shard_frees& frees) noexcept
      : parts_{parts}, frees_{frees}, search_{parts.options.cross_stream, parts.rules} {}

  /// Allocates from the thread's own shard, and locks no other shard. Returns null also if the request needs the locks
  /// of all shards. If the pool has one shard, this function does not poll streams for completed work. The caller then
  /// calls search_all(), which polls them under the lock of the same shard.
  void* allocate_from_own(allocation_request& request);
  /// Searches all shards. If that finds nothing, moves the blocks of the thread caches to the free ranges and searches
  /// again, as long as there are such blocks.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_all(allocation_request const& request);
  /// Serves a thread that should not take single blocks out of other threads' shards. Searches the thread's own shard.
  /// If that has no fit, moves a whole unused chunk from another shard into it. If this returns null, the caller grows
  /// the thread's shard.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_own(allocation_request const& request);
  /// Searches all shards, including ranges that other streams still use. Makes the request's stream wait on the device
  /// for the uses of the range that it gets.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_with_wait(allocation_request const& request);
  /// Returns whether the thread of the shard `thief` has lately taken `max_steals` blocks from other threads' shards.
  /// Then that shard should grow instead.
  [[clang::requires_capability(one_shard, all_shards)]] bool steals_too_often(pool_shard const& thief) const noexcept;
  /// Grows the pool by memory of the upstream, and allocates the block there. Unless `exact`, gets more memory than the
  /// request needs. The result is retry() if another thread grew the pool meanwhile, or if the new memory is not
  /// enough. The caller then searches again. Unlocks the shards during calls of the upstream.
  [[clang::requires_capability(one_shard, all_shards)]] attempt<void*> grow(allocation_request const& request,
                                                                            bool exact);
  /// Allocates the block of the request at the place that a search has found. Returns its address.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void*
  commit(allocation_request const& request, placement place);

private:
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] block&
  split_off(allocation_request const& request, placement place);

  pool_parts& parts_;
  shard_frees& frees_;
  range_search search_;
};

} // namespace gpumem::detail
