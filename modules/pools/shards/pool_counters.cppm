// Counts of the paths that the calls of a pool took, for tests and benchmarks.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_counters;
import :std;

namespace gpumem::detail {

/// Counts beyond those of `statistics`.
export struct pool_counters {
  std::uint64_t thread_cache_hits = 0; ///< allocations from a thread cache
  std::uint64_t quick_list_hits = 0;   ///< allocations from a quick list
  std::uint64_t locked_calls = 0;      ///< allocations and frees that took the lock of a shard
  std::uint64_t all_locked_calls = 0;  ///< allocations and frees that took the locks of several shards
  std::uint64_t joins = 0;             ///< times that a shard became spare, and its thread used the first one again
  std::uint64_t steals = 0;
  std::uint64_t remote_frees = 0;
  std::uint64_t chunks_migrated = 0; ///< chunks that moved to another shard
  std::uint64_t page_evictions = 0;  ///< times that free pages were unmapped so that the pool could grow
  std::uint64_t page_moves = 0;      ///< times that free pages moved to where memory was missing
  std::uint64_t flushed = 0;         ///< blocks that left thread caches for their shards
  std::uint64_t over_budget = 0; ///< frees of small and medium blocks that a thread cache refused for lack of budget
  std::uint64_t promoted = 0;    ///< free ranges from which uses were dropped as complete
};

} // namespace gpumem::detail
