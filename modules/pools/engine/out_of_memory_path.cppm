// The steps by which a pool that cannot grow finds memory for a request.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:out_of_memory_path;
import :error;
import :frees;
import :pool_parts;
import :range_search;
import :shard_allocator;
import :shard_list;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// Finds memory for a request for which the pool cannot grow, by steps of rising cost. It moves the blocks of all
/// thread caches to the free lists. It makes the request's stream wait for other streams that still use free memory. It
/// gives unused memory back to the upstream, and gets new memory for the request instead. It lets the host wait, for at
/// most one second, until streams complete their work.
export class out_of_memory_path {
public:
  /// Keeps references to all arguments.
  out_of_memory_path(pool_parts& parts, shard_frees& frees, shard_allocator& allocator) noexcept
      : parts_{parts}, frees_{frees}, allocator_{allocator} {}

  /// Returns the block, or the failure if no step has found memory. `why`: the failure of the growth. The caller holds
  /// the locks of all shards. They are unlocked during calls of the upstream and during waits. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure> allocate(allocation_request& request,
                                                                                          failure const& why);

  /// Gives back memory of closed pools of the device, if `why`, a failure of the upstream, says that the device has no
  /// memory left. Returns whether any went back. Unlocks the shards meanwhile.
  [[clang::requires_capability(one_shard, all_shards)]] bool release_closed_pools(failure const& why) noexcept;

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
                                                                      failure const& why) const;

  pool_parts& parts_;
  shard_frees& frees_;
  shard_allocator& allocator_;
};

} // namespace gpumem::detail
