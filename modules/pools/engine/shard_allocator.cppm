// Allocation out of the shards' free ranges and out of new memory.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shard_allocator;
import :allocation_request;
import :attempt;
import :block;
import :pool_parts;
import :pool_shard;
import :range_search;
import :shard_frees;
import :shard_list;
import :shard_roles;
import :std;

namespace gpumem::detail {

/// Finds a range for a request, or grows the pool for it, and allocates the block out of that range. Functions that
/// return a pointer return null if they find nothing. Except for the first they are called under the locks of all
/// shards. All throw std::bad_alloc.
export class shard_allocator {
public:
  /// Refers to both.
  shard_allocator(pool_parts& parts, shard_frees& frees) noexcept
      : parts_{parts}, frees_{frees}, search_{parts.options.cross_stream, parts.rules} {}

  /// Allocates from the thread's own shard under its lock alone. Returns null also if that needs the locks of all
  /// shards. With a single shard this does not poll: the search under all locks costs the same then, and polls.
  void* allocate_from_own(allocation_request& request);
  /// Searches all shards, then flushes the thread caches and repeats while a flush finds blocks.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_all(allocation_request const& request);
  /// Serves a thread that steals too often: from its own shard, or from an unused chunk, which moves there from another
  /// shard. If it returns null, the caller grows the shard.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_own(allocation_request const& request);
  /// Also searches ranges that other streams still use, and makes the request's stream wait for these uses.
  [[clang::requires_capability(one_shard, all_shards)]] void* search_with_wait(allocation_request const& request);
  /// Whether the thread has stolen `max_steals` times of late, so that its own shard grows instead.
  [[clang::requires_capability(one_shard, all_shards)]] bool steals_too_often(pool_shard const& thief) const noexcept;
  /// Allocates from new memory of the upstream; unless `exact`, gets some to spare. Must be retried if another thread
  /// grew the pool meanwhile, or if the new memory does not serve the request. Unlocks the shards during driver calls.
  [[clang::requires_capability(one_shard, all_shards)]] attempt<void*> grow(allocation_request const& request,
                                                                            bool exact);
  /// Allocates the block of a request at its place.
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
