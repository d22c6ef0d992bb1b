// Counts of what a pool did.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_counters;
import :std;

namespace gpumem::detail {

/// How often the ways were taken that statistics do not tell of.
export struct pool_counters {
  std::uint64_t thread_cache_hits = 0; ///< granted out of a thread cache
  std::uint64_t quick_list_hits = 0;   ///< granted out of a span
  std::uint64_t locked_calls = 0;      ///< allocations and frees that took a lock of the pool
  std::uint64_t all_locked_calls = 0;  ///< those among them that took the locks of several shards
  std::uint64_t shards = 0;            ///< how many there are
  std::uint64_t steals = 0;            ///< granted out of another thread's shard
  std::uint64_t remote_frees = 0;      ///< freed into a shard whose lock was taken
  std::uint64_t chunks_migrated = 0;   ///< chunks that changed shards
  std::uint64_t page_evictions = 0;    ///< times that free pages went for a growth
  std::uint64_t page_moves = 0;        ///< times that they moved to where it lacked them
  std::uint64_t flushed = 0;           ///< blocks taken out of thread caches
  std::uint64_t over_budget = 0;       ///< frees of small and medium blocks that found no budget for their size
  std::uint64_t promoted = 0;          ///< ranges that a stream's completion gave to all
};

} // namespace gpumem::detail
