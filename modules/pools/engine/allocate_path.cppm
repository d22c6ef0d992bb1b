// Allocations for which the thread cache has no block: out of shards, by growth, and by the steps of a pool that cannot
// grow.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:allocate_path;
import :block;
import :error;
import :frees;
import :pool_parts;
import :pool_shard;
import :range_search;
import :request_queue;
import :shard_list;
import :shard_roles;
import :std;
import :stream;

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

/// Finds memory for a request for which the pool cannot grow, by steps of rising cost. It moves the blocks of all
/// thread caches to the free lists. It makes the request's stream wait for other streams that still use free memory. It
/// gives unused memory back to the upstream, and gets new memory for the request instead. It lets the host wait, for at
/// most one second, until streams complete their work.
export class out_of_memory_path {
public:
  /// Keeps references to all arguments.
  out_of_memory_path(pool_parts& parts, shard_frees& frees, shard_allocator& allocator) noexcept
      : parts_{parts}, frees_{frees}, allocator_{allocator} {}

  /// Returns the block, or the failure if no step has found memory. `failure`: the failure of the growth. The caller
  /// holds the locks of all shards. They are unlocked during calls of the upstream and during waits. Throws
  /// std::bad_alloc.
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure> allocate(allocation_request& request,
                                                                                          failure const& failure);

  /// Gives back memory of closed pools of the device, if `failure`, a failure of the upstream, says that the device has
  /// no memory left. Returns whether any went back. Unlocks the shards meanwhile.
  [[clang::requires_capability(one_shard, all_shards)]] bool release_closed_pools(failure const& failure) noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure>
  grow_or_search(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] void flush();
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure>
  grow_in_place(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] void* sync_and_retry(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] void* search_after_sync(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] bool sync_could_help(allocation_request const& request) const;
  [[clang::requires_shared_capability(all_shards)]] bool is_never_met(allocation_request const& request,
                                                                      failure const& failure) const;

  pool_parts& parts_;
  shard_frees& frees_;
  shard_allocator& allocator_;
};

/// Allocates the blocks that the thread's cache of freed blocks does not have. A pool has one or more shards, each with
/// a lock and free ranges of its own. The search takes the lock of the thread's own shard. If that shard has nothing,
/// it takes the locks of all shards. It tries free ranges first, then new memory of the upstream. At last, class
/// out_of_memory_path waits for streams and replaces unused memory.
export class allocate_path {
public:
  /// Keeps references to all arguments.
  allocate_path(pool_parts& parts, shard_frees& frees, deferred_frees& deferred, request_queue& queue,
                shard_allocator& allocator, out_of_memory_path& last_resort) noexcept
      : parts_{parts}, frees_{frees}, deferred_{deferred}, queue_{queue}, allocator_{allocator},
        out_of_memory_{last_resort} {}

  /// Returns a block of `bytes` bytes, or the failure. `size`: the size to which the pool rounds `bytes` up. Called by
  /// any thread, without a lock of the pool.
  expected<void*, failure> allocate(stream_key const& key, size_class size, std::size_t bytes,
                                    std::size_t alignment) noexcept;
  /// Maps `bytes` bytes of pages in the borrower's address range, and returns them as one live block there. They may be
  /// used by every stream immediately. `bytes`: whole pages. Waits, fails and counts as an allocation does.
  expected<void*, failure> lend(stream_key const& key, loan_terms const& terms, std::size_t bytes) noexcept;

private:
  expected<void*, failure> try_allocate(allocation_request request) noexcept;
  expected<void*, failure> allocate_from_all(allocation_request& request);
  [[clang::requires_capability(one_shard, all_shards)]] void enter(allocation_request& request);
  expected<void*, failure> fail(allocation_request const& request, outcome reason) noexcept;
  [[clang::requires_capability(one_shard)]] static void count_failure(pool_shard& shard,
                                                                      allocation_request const& request) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  deferred_frees& deferred_;
  request_queue& queue_;
  shard_allocator& allocator_;
  out_of_memory_path& out_of_memory_;
};

} // namespace gpumem::detail
