// Allocations for which the thread cache has no block: out of shards, by growth, and by the steps of a pool that cannot
// grow.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
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

/// Allocates the blocks that the thread's cache of freed blocks does not have. The search takes the lock of the
/// thread's own shard. If that shard has nothing, it takes the locks of all shards. It tries free ranges first, then
/// new memory of the upstream.
///
/// If the pool cannot grow, steps of rising cost follow. The blocks of all thread caches move to the free lists. The
/// request's stream waits for other streams that still use free memory. Unused memory goes back to the upstream, and
/// new memory takes its place. Last, the host waits, for at most one second, until streams complete their work.
export class allocate_path {
public:
  /// Keeps references to all arguments.
  allocate_path(pool_parts& parts, shard_frees& frees, request_queue& queue) noexcept;

  /// Returns a block of `bytes` bytes, or the failure. `size`: the size to which the pool rounds `bytes` up. Called by
  /// any thread, without a lock of the pool.
  expected<void*, failure> allocate(stream_key const& key, size_class size, std::size_t bytes,
                                    std::size_t alignment) noexcept;
  /// Maps `bytes` bytes of pages in the borrower's address range, and returns them as one live block there. They may be
  /// used by every stream immediately. `bytes`: whole pages. Waits, fails and counts as an allocation does.
  expected<void*, failure> lend(stream_key const& key, loan_terms const& terms, std::size_t bytes) noexcept;
  /// Gives back memory of closed pools of the device, if `failure`, a failure of the upstream, says that the device has
  /// no memory left. Returns whether any went back. Unlocks the shards meanwhile.
  GPUMEM_REQUIRES(one_shard, all_shards) bool release_closed_pools(failure const& failure) noexcept;

private:
  // Functions that return a pointer return null if they find nothing. Those that are not noexcept may throw
  // std::bad_alloc.
  expected<void*, failure> try_allocate(allocation_request request) noexcept;
  void* allocate_from_own(allocation_request& request);
  expected<void*, failure> allocate_from_all(allocation_request& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void enter(allocation_request& request);
  expected<void*, failure> fail(allocation_request const& request, outcome reason) noexcept;
  GPUMEM_REQUIRES(one_shard)
  static void count_failure(pool_shard& shard, allocation_request const& request, outcome reason) noexcept;

  GPUMEM_REQUIRES(one_shard, all_shards) void* search_all(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void* search_own(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void* search_with_wait(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) bool steals_too_often(pool_shard const& thief) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) attempt<void*> grow(allocation_request const& request, bool exact);
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) void* commit(allocation_request const& request, placement place);
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) block& split_off(allocation_request const& request, placement place);

  GPUMEM_REQUIRES(one_shard, all_shards)
  expected<void*, failure> allocate_without_growth(allocation_request& request, failure const& failure);
  GPUMEM_REQUIRES(one_shard, all_shards) expected<void*, failure> grow_or_search(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) expected<void*, failure> grow_in_place(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void* sync_and_retry(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) void* search_after_sync(allocation_request const& request);
  GPUMEM_REQUIRES(one_shard, all_shards) bool sync_could_help(allocation_request const& request) const;
  GPUMEM_REQUIRES_SHARED(all_shards) bool is_never_met(allocation_request const& request, failure const& failure) const;

  pool_parts& parts_;
  shard_frees& frees_;
  request_queue& queue_;
  range_search search_;
  std::size_t const largest_block_; // bytes; SIZE_MAX in a hardened pool: it checks requests before it adds guards
};

} // namespace gpumem::detail
