// A request for which the pool cannot grow.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:out_of_memory;
import :allocation_request;
import :error;
import :pool_parts;
import :shard_allocator;
import :shard_frees;
import :shard_list;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// Finds memory for a request for which the pool cannot grow, at rising cost. It flushes the thread caches, lets the
/// request's stream wait for other streams, and gives back pages or chunks to grow in their place. At last the host
/// waits, for at most one second.
export class out_of_memory {
public:
  /// Refers to all arguments.
  out_of_memory(pool_parts& parts, shard_frees& frees, shard_allocator& allocator) noexcept
      : parts_{parts}, frees_{frees}, allocator_{allocator} {}

  /// `why`: the failure of the growth. Under the locks of all shards, which it unlocks during driver calls and waits.
  /// Throws std::bad_alloc.
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure> allocate(allocation_request& request,
                                                                                          failure const& why);

private:
  [[clang::requires_capability(one_shard, all_shards)]] void flush();
  [[clang::requires_capability(one_shard, all_shards)]] expected<void*, failure>
  grow_in_place(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] void* sync_and_retry(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] void* search_after_sync(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] bool sync_could_help(allocation_request const& request) const;

  pool_parts& parts_;
  shard_frees& frees_;
  shard_allocator& allocator_;
};

} // namespace gpumem::detail
