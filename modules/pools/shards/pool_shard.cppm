// A shard, its counters, its part of the peak, and its remote frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
export module gpumem:pool_shard;
import :block;
import :page_store;
import :range_allocator;
import :shard_roles;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// The live bytes of one shard, guarded by its lock. Blocks in thread caches still count.
export struct live_count {
  std::int64_t bytes = 0;
  std::int64_t published = 0; ///< the part of `bytes` that the peak_tracker knows
};

/// Tracks the peak of the live bytes that callers requested. Each shard adds its changes to the common count only when
/// they exceed `slack`, so that threads rarely write to that count at the same time. So the peak is exact to `slack`
/// per shard.
export class peak_tracker {
public:
  /// Counts a change. If the shard's changes that the common count does not include exceed `slack`, publishes them:
  /// adds them to the common count. The caller holds the lock of the count's shard. `nearby`: bytes that count as live
  /// although they are free, in the calling thread's cache.
  inline void count(live_count& counter, std::int64_t change, std::int64_t nearby, std::int64_t slack) noexcept {
    counter.bytes += change;
    auto const delta = counter.bytes - counter.published;
    if (delta <= slack && -delta <= slack) return;
    auto const all = publish(counter);
    if (change > 0) raise(all - nearby);
  }
  /// Counts a change while the pool has only one shard; publishes nothing.
  inline void count_alone(live_count& counter, std::int64_t change, std::int64_t nearby) noexcept {
    counter.bytes += change;
    if (change > 0) raise(counter.bytes - nearby);
  }
  /// Publishes the changes of one shard's count. The caller holds the lock of that shard. Returns the live bytes that
  /// all shards have published.
  inline std::int64_t publish(live_count& counter) noexcept {
    auto const delta = counter.bytes - std::exchange(counter.published, counter.bytes);
    return published_.fetch_add(delta, std::memory_order_relaxed) + delta;
  }

  /// Sets the peak to the live bytes. The caller holds the locks of all shards.
  inline void reset(std::int64_t live) noexcept { peak_.store(live, std::memory_order_relaxed); }

  inline std::size_t peak() const noexcept { return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed)); }

private:
  inline void raise(std::int64_t live) noexcept {
    auto seen = peak_.load(std::memory_order_relaxed);
    while (seen < live && !peak_.compare_exchange_weak(seen, live, std::memory_order_relaxed)) {}
  }

  alignas(64) std::atomic<std::int64_t> published_{0}; // all threads write it, so it starts a new cache line
  std::atomic<std::int64_t> peak_{0};
};

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
  std::uint64_t page_unmaps = 0;     ///< times that free pages were unmapped so that the pool could grow
  std::uint64_t page_moves = 0;      ///< times that free pages moved to where memory was missing
  std::uint64_t idle_visits = 0;     ///< free ranges that searches for idle pages have looked at
  std::uint64_t flushed = 0;         ///< blocks that left thread caches for their shards
  std::uint64_t refused_frees = 0;   ///< frees of small and medium blocks for which a thread cache had no room
  std::uint64_t promoted = 0;        ///< free ranges from which uses were dropped as complete
};

/// The blocks of a shard that other threads have freed without its lock; the next holder of the lock completes the
/// frees. Compare the lists of thread-delayed frees of mimalloc (Leijen, Zorn, de Moura 2019).
export class remote_frees {
public:
  inline bool empty() const noexcept { return first_.load(std::memory_order_relaxed) == nullptr; }
  /// Adds a live block to the list. `use`: the block's last use. Any thread.
  inline void push(block& returned, stream_use const& use) noexcept {
    returned.uses.assign(use);
    returned.set_state(block_state::remote_freed);
    returned.next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(returned.next, &returned, std::memory_order_release,
                                         std::memory_order_relaxed)) {}
  }
  /// Removes and returns all blocks, linked by `next`, the newest first. The caller holds the lock of the shard.
  inline block* take_all() noexcept { return first_.exchange(nullptr, std::memory_order_acquire); }

private:
  std::atomic<block*> first_{nullptr};
};

/// Reserved addresses of a shard, and the pages that are mapped there.
export struct address_range {
  address_range(pool_shard& owner, std::shared_ptr<page_store> store, std::size_t most, std::size_t least)
      : pages{std::move(store), most, least}, shard{&owner} {}

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
  range_allocator ranges GPUMEM_GUARDED_BY(one_shard);
  statistics
      counts GPUMEM_GUARDED_BY(one_shard); ///< only numbers of calls; sizes are added up when statistics are read
  pool_counters counters GPUMEM_GUARDED_BY(one_shard);
  live_count live GPUMEM_GUARDED_BY(one_shard);
  std::int64_t live_blocks GPUMEM_GUARDED_BY(one_shard) = 0; ///< including blocks in thread caches
  std::size_t reserved GPUMEM_GUARDED_BY(one_shard) = 0;
  std::vector<std::unique_ptr<address_range>>
      addresses GPUMEM_GUARDED_BY(one_shard); ///< the newest last; empty in a pool over chunks. They stay.
  std::uint64_t round_begin GPUMEM_GUARDED_BY(one_shard) = 0; ///< counters.locked_calls when the round began
  alignas(128) class remote_frees remote_frees; ///< frees by threads that found the lock taken; needs no lock
  alignas(128) time_budget poll_budget GPUMEM_GUARDED_BY(one_shard); ///< time for polls by requests that find no memory
  unsigned steals GPUMEM_GUARDED_BY(one_shard) = 0;          ///< recent blocks its threads took from other shards
  std::uint64_t last_steal GPUMEM_GUARDED_BY(one_shard) = 0; ///< counters.locked_calls at the last steal
  relaxed_atomic<bool> spare{false}; ///< no thread uses this shard; changed under the locks of all shards
  bool lends = false;                ///< its blocks are loans: no request searches its free ranges, and it stays spare
  static constexpr std::uint8_t rounds_active = 2; ///< rounds_left after an allocation by a thread of this shard
  /// Rounds after which the shard is inactive unless its threads allocate; 0: it is inactive.
  std::uint8_t rounds_left GPUMEM_GUARDED_BY(one_shard) = 0;
  /// All blocks lie between these addresses. The first one only falls, the other only rises.
  alignas(128) relaxed_atomic<std::uintptr_t> first_address{UINTPTR_MAX};
  relaxed_atomic<std::uintptr_t> end_address;

  /// Says that blocks will lie between these addresses too. Called under the locks of all shards.
  inline void include(std::uintptr_t first, std::uintptr_t end) noexcept {
    first_address = std::min<std::uintptr_t>(first_address, first);
    end_address = std::max<std::uintptr_t>(end_address, end);
  }

  /// Adds an address range, for which the vector has room.
  GPUMEM_REQUIRES(one_shard) void add(std::unique_ptr<address_range> range) noexcept;
  /// Returns the block that starts at the address and is not free; null if there is none. Needs no lock, but the result
  /// is then certain only for the block's owner. Does not search for addresses outside the shard, because each search
  /// reads a table to which another thread may be writing.
  GPUMEM_NO_LOCK_ANALYSIS inline block* find_live(void const* pointer) const noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(pointer);
    return address >= first_address && address < end_address ? ranges.find_live(pointer) : nullptr;
  }
};

/// Shards to search, in this order.
export using shard_span = std::span<pool_shard* const>;

} // namespace gpumem::detail
