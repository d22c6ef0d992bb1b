// A part of a pool, with a lock of its own.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
export module gpumem:pool_shard;
import :block;
import :chunk;
import :peak_tracker;
import :pool_counters;
import :range_allocator;
import :relaxed_atomic;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Some of a pool's chunks, and what was counted of them. Guarded by its lock.
export struct alignas(false_sharing_distance) pool_shard {
  explicit pool_shard(double poll_share) noexcept;

  sync::spin_mutex mutex;
  range_allocator ranges;
  statistics counts; ///< sizes are filled in when asked for
  pool_counters counters;
  live_count live;
  std::int64_t live_blocks = 0; ///< with those in thread caches
  std::size_t reserved = 0;
  std::unique_ptr<virtual_pages> pages; ///< of pools that draw pages; one thread at a time calls it, without the lock
  chunk* paged = nullptr;               ///< what is mapped of them, holes included
  alignas(128) std::atomic<block*> remote_frees{
      nullptr};                         ///< linked by `next`; any thread puts, the lock's holder takes
  alignas(128) time_budget poll_budget; ///< at requests that find nothing, for what has completed
  unsigned steals = 0;                  ///< of its threads, in quick succession
  std::uint64_t last_steal = 0;         ///< after how many locked calls it was the last time
  alignas(128) relaxed_atomic<std::uintptr_t> first_address;
  relaxed_atomic<std::size_t> address_space{SIZE_MAX}; ///< from there on its blocks lie; of chunks, anywhere

  /// As of its ranges; what it cannot have is not searched for: who holds the lock writes there all the time.
  inline block* find_live(void const* pointer) const noexcept {
    bool const may_be = reinterpret_cast<std::uintptr_t>(pointer) - first_address < address_space;
    return may_be ? ranges.find_live(pointer) : nullptr;
  }
  /// Of an address in its pages.
  inline std::size_t offset_of(std::uintptr_t address) const noexcept {
    return address - reinterpret_cast<std::uintptr_t>(pages->base());
  }
};

/// Shards to look into, one after the other.
export using shard_span = std::span<pool_shard* const>;

} // namespace gpumem::detail
