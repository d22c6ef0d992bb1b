// A shard: a part of a pool with a lock, chunks and free lists of its own.
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
import :remote_frees;
import :shard_roles;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Some of a pool's chunks, and the counts of their blocks. Guarded by `mutex`.
export struct alignas(false_sharing_distance) pool_shard {
  /// `poll_share`: the share of the time that polls may take. `locked`: the calling thread holds the new shard's lock.
  /// Throws std::bad_alloc.
  explicit pool_shard(double poll_share, bool locked = false);

  sync::spin_mutex mutex;
  range_allocator ranges __attribute__((guarded_by(one_shard)));
  statistics counts
      __attribute__((guarded_by(one_shard))); ///< only numbers of calls; sizes are added up when statistics are read
  pool_counters counters __attribute__((guarded_by(one_shard)));
  live_count live __attribute__((guarded_by(one_shard)));
  std::int64_t live_blocks __attribute__((guarded_by(one_shard))) = 0; ///< including blocks in thread caches
  std::size_t reserved __attribute__((guarded_by(one_shard))) = 0;
  std::unique_ptr<virtual_pages> pages; ///< null in a pool over chunks; one thread at a time, not guarded by `mutex`
  chunk* paged __attribute__((guarded_by(one_shard))) =
      nullptr; ///< the chunk that consists of mapped pages and the holes between them; null: none yet
  alignas(128) class remote_frees remote_frees; ///< frees by threads that found the lock taken; needs no lock
  alignas(128) time_budget poll_budget
      __attribute__((guarded_by(one_shard)));                 ///< time for polls by requests that find no memory
  unsigned steals __attribute__((guarded_by(one_shard))) = 0; ///< recent blocks its threads took from other shards
  std::uint64_t last_steal __attribute__((guarded_by(one_shard))) = 0; ///< counters.locked_calls at the last steal
  alignas(128) relaxed_atomic<std::uintptr_t> first_address;
  relaxed_atomic<std::size_t> address_space{SIZE_MAX}; ///< number of bytes from first_address on that hold all blocks

  /// Returns the block that starts at the address and is not free; null if there is none. Needs no lock, but the result
  /// is then certain only for the block's owner. Does not search for addresses outside the shard, because each search
  /// reads a table to which another thread may be writing.
  [[clang::no_thread_safety_analysis]] inline block* find_live(void const* pointer) const noexcept {
    bool const may_be = reinterpret_cast<std::uintptr_t>(pointer) - first_address < address_space;
    return may_be ? ranges.find_live(pointer) : nullptr;
  }
  /// Returns the offset of an address in the shard's pages.
  inline std::size_t offset_of(std::uintptr_t address) const noexcept {
    return address - reinterpret_cast<std::uintptr_t>(pages->base());
  }
};

/// Shards to search, in this order.
export using shard_span = std::span<pool_shard* const>;

} // namespace gpumem::detail
