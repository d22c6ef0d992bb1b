// The statistics of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
export module gpumem:pool_statistics;
import :block_info;
import :error;
import :frees;
import :pool_parts;
import :pool_shard;
import :request_queue;
import :shard_roles;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// Sums up the counts of a pool's shards, its thread caches and its waiting requests. Takes the locks of all shards.
/// Any thread.
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
  // Sums over shards. `agree`: the shards have as many bytes as the pool.
  struct shard_sums {
    statistics all;
    std::int64_t live = 0; // bytes, including those of blocks in thread caches
    std::size_t reserved = 0;
    bool agree = false;
    std::vector<stream_timeline const*> users; // of free memory; a stream can occur several times
  };
  shard_sums read_shards();
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  add_shard(pool_shard& one, shard_sums& sums);
  void add_waiting(statistics& sum);

  pool_parts& parts_;
  shard_frees& frees_;
  request_queue& queue_;
};

} // namespace gpumem::detail
