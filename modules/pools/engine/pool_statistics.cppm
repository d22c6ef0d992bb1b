// The statistics of a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_statistics;
import :block_info;
import :error;
import :pool_counters;
import :pool_parts;
import :request_queue;
import :shard_frees;
import :std;

namespace gpumem::detail {

/// Sums up the counts of a pool's shards, its thread caches and its waiting requests. Takes the locks of all shards,
/// which are parts of the pool with a lock each. Any thread.
export class pool_statistics {
public:
  /// Keeps references to all arguments.
  pool_statistics(pool_parts& parts, shard_frees& frees, request_queue& queue) noexcept
      : parts_{parts}, frees_{frees}, queue_{queue} {}

  statistics read();
  pool_counters read_counters();
  /// Describes the block or the free range that holds the address; nullopt if the address is not in the pool. Takes
  /// time in proportion to the number of blocks in the same chunk.
  std::optional<block_info> find(void const* pointer);
  /// Counts the live blocks, and describes the largest. Takes time in proportion to the number of blocks. Throws
  /// std::bad_alloc.
  live_blocks find_live();
  /// Describes all reserved memory, in the order of addresses. Takes time in proportion to the number of blocks. Throws
  /// std::bad_alloc.
  std::vector<memory_range> memory_map();

private:
  std::int64_t add_shards(statistics& sum);
  void add_waiting(statistics& sum);

  pool_parts& parts_;
  shard_frees& frees_;
  request_queue& queue_;
};

} // namespace gpumem::detail
