// A shard of a pool: its address ranges, chunks, blocks and counts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
export module gpumem:pool_shard;
import :block;
import :page_store;
import :peak_tracker;
import :pool_counters;
import :range_allocator;
import :remote_frees;
import :shard_roles;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// Reserved addresses of a shard, and the pages that are mapped there.
export struct address_range {
  address_range(pool_shard& owner, std::shared_ptr<page_store> from, std::size_t most, std::size_t least)
      : pages{std::move(from), most, least}, shard{&owner} {}

  virtual_pages pages;
  pool_shard* shard;
  bool closed = false;     ///< of a borrower that has ended: the addresses go back once no page is mapped there
  chunk* mapped = nullptr; ///< the mapped pages and the holes between them; null: no page is mapped

  /// Returns the offset of an address.
  inline std::size_t offset_of(std::uintptr_t address) const noexcept {
    return address - reinterpret_cast<std::uintptr_t>(pages.base());
  }
};

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
  std::vector<std::unique_ptr<address_range>> addresses
      __attribute__((guarded_by(one_shard))); ///< the newest last; empty in a pool over chunks. They stay.
  std::uint64_t round_begin __attribute__((guarded_by(one_shard))) = 0; ///< counters.locked_calls when the round began
  alignas(128) class remote_frees remote_frees; ///< frees by threads that found the lock taken; needs no lock
  alignas(128) time_budget poll_budget
      __attribute__((guarded_by(one_shard)));                 ///< time for polls by requests that find no memory
  unsigned steals __attribute__((guarded_by(one_shard))) = 0; ///< recent blocks its threads took from other shards
  std::uint64_t last_steal __attribute__((guarded_by(one_shard))) = 0; ///< counters.locked_calls at the last steal
  relaxed_atomic<bool> spare{false}; ///< no thread uses this shard; changed under the locks of all shards
  bool lends = false;                ///< its blocks are loans: no request searches its free ranges, and it stays spare
  static constexpr std::uint8_t rounds_active = 2; ///< rounds_left after an allocation by a thread of this shard
  /// Rounds after which the shard is inactive unless its threads allocate; 0: it is inactive.
  std::uint8_t rounds_left __attribute__((guarded_by(one_shard))) = 0;
  /// All blocks lie between these addresses. The first one only falls, the other only rises.
  alignas(128) relaxed_atomic<std::uintptr_t> first_address{UINTPTR_MAX};
  relaxed_atomic<std::uintptr_t> end_address;

  /// Says that blocks will lie between these addresses too. Called under the locks of all shards.
  inline void include(std::uintptr_t first, std::uintptr_t end) noexcept {
    first_address = std::min<std::uintptr_t>(first_address, first);
    end_address = std::max<std::uintptr_t>(end_address, end);
  }

  /// Adds an address range, for which the vector has room.
  [[clang::requires_capability(one_shard)]] void add(std::unique_ptr<address_range> made) noexcept;
  /// Returns the block that starts at the address and is not free; null if there is none. Needs no lock, but the result
  /// is then certain only for the block's owner. Does not search for addresses outside the shard, because each search
  /// reads a table to which another thread may be writing.
  [[clang::no_thread_safety_analysis]] inline block* find_live(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    return address >= first_address && address < end_address ? ranges.find_live(pointer) : nullptr;
  }
};

/// Shards to search, in this order.
export using shard_span = std::span<pool_shard* const>;

} // namespace gpumem::detail
