// Allocations for which the cache of the calling thread has no block.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:allocate_path;
import :block;
import :error;
import :frees;
import :out_of_memory_path;
import :pool_parts;
import :pool_shard;
import :range_search;
import :request_queue;
import :shard_allocator;
import :shard_list;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

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
  expected<void*, failure> fail(allocation_request const& request, outcome why) noexcept;
  [[clang::requires_capability(one_shard)]] static void count_failure(pool_shard& in,
                                                                      allocation_request const& request) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  deferred_frees& deferred_;
  request_queue& queue_;
  shard_allocator& allocator_;
  out_of_memory_path& out_of_memory_;
};

} // namespace gpumem::detail
