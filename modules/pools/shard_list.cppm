// The parts of a pool, each with a lock of its own, and which thread goes to which.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <chrono>
#include <mutex>
#include <span>
export module gpumem:shard_list;
import :block;
import :peak_tracker;
import :range_allocator;
import :relaxed_atomic;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

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

/// A burst of polls, before the next may come no sooner than the share says.
inline constexpr time_budget::nanoseconds max_poll_burst = std::chrono::microseconds{200};

/// Some of a pool's chunks, and what was counted of them. Guarded by its lock.
export struct alignas(false_sharing_distance) pool_shard {
  explicit pool_shard(double poll_share) noexcept : poll_budget{poll_share, max_poll_burst, sync::now()} {}

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

/// Shards: one at first; a thread that often finds its shard's lock taken is given one of its own. A block goes back to
/// the shard it came from, whoever frees it.
export class shard_list {
public:
  static constexpr std::size_t max_shards = 65; ///< one, and one for each of as many threads as are told apart

  /// `poll_share`: of the time of each shard that it may spend on polls.
  explicit shard_list(double poll_share = 1) : poll_share_{poll_share} { add(); }
  shard_list(shard_list const&) = delete;
  shard_list& operator=(shard_list const&) = delete;

  /// The calling thread's. Any thread.
  inline pool_shard& shard_of_thread() noexcept { return *own_slot().shard.load(std::memory_order_acquire); }
  /// The same, of the thread of that index; null where it has met others there too often.
  inline pool_shard* uncontended_shard(unsigned thread) noexcept {
    auto const& mine = slots_[thread % (max_shards - 1)];
    return mine.contention.load(std::memory_order_relaxed) < sync::contention_threshold
               ? mine.shard.load(std::memory_order_acquire)
               : nullptr;
  }
  /// The shard of the thread of that index.
  inline pool_shard& shard_of(unsigned thread) noexcept {
    return *slots_[thread % (max_shards - 1)].shard.load(std::memory_order_acquire);
  }
  inline bool single() const noexcept { return count_.load(std::memory_order_relaxed) == 1; }
  /// They do not change under any of the locks; without one others may be added.
  inline std::span<std::unique_ptr<pool_shard> const> all() const noexcept {
    return {shards_.data(), count_.load(std::memory_order_acquire)};
  }

  /// All, beginning with one. Under any of the locks.
  class search_order {
  public:
    search_order(shard_list const& list, pool_shard& first) noexcept;
    operator shard_span() const noexcept { return {order_.data(), count_}; }

  private:
    std::array<pool_shard*, max_shards> order_;
    std::size_t count_ = 0;
  };

  /// Takes a shard's lock.
  inline sync::spin_lock lock(pool_shard& one) {
    if (!one.mutex.try_lock()) lock_contended(one);
    return {one.mutex, std::adopt_lock};
  }

  /// The calling thread has found the lock of a shard that it shares with others taken too often.
  inline bool contended() noexcept {
    return own_slot().contention.load(std::memory_order_relaxed) >= sync::contention_threshold;
  }
  /// Gives it a shard of its own, where the host has memory for one. Under all locks.
  void add_for_thread() noexcept;

  /// Where the block lies that begins there and is not free. Without a lock: for whoever owns the block, and to be
  /// looked at again under the shard's lock by others.
  struct lookup {
    block* that = nullptr;
    pool_shard* shard = nullptr;
  };
  inline lookup find_live(void const* pointer) noexcept {
    auto& last = own_slot().last_freed_shard;
    auto* const likely = last.load(std::memory_order_relaxed);
    if (auto* const that = likely->find_live(pointer)) return {that, likely};
    if (single()) return {};
    return find_in_all(pointer, last);
  }

private:
  friend class all_shards_lock;
  // A thread's: far from others', since it writes there when it frees what others have.
  struct alignas(false_sharing_distance) thread_slot {
    std::atomic<pool_shard*> shard{nullptr};
    std::atomic<pool_shard*> last_freed_shard{nullptr}; // last, what was not kept
    std::atomic<std::uint32_t> contention{0};           // locks found taken, while it has no shard of its own
    std::atomic<bool> owns_shard{false};
  };

  inline thread_slot& own_slot() noexcept { return slots_[sync::thread_index() % (max_shards - 1)]; }
  void add();
  void lock_contended(pool_shard& one) noexcept;
  lookup find_in_all(void const* pointer, std::atomic<pool_shard*>& last) noexcept;

  double const poll_share_;
  std::array<std::unique_ptr<pool_shard>, max_shards> shards_;
  std::atomic<unsigned> count_{0};
  std::array<thread_slot, max_shards - 1> slots_;
};

/// The locks of all shards, held together. What changes only under all of them may be read under any.
export class all_shards_lock {
public:
  explicit all_shards_lock(shard_list& of) : of_{&of} { lock(); }
  ~all_shards_lock() {
    if (first_) unlock();
  }
  all_shards_lock(all_shards_lock const&) = delete;
  all_shards_lock& operator=(all_shards_lock const&) = delete;

  inline void lock() {
    first_ = of_->lock(*of_->shards_[0]);
    if (!of_->single()) lock_rest();
  }
  inline void unlock() {
    if (!of_->single()) unlock_rest();
    first_.unlock();
  }
  /// Gives them up for the time of the wait.
  inline void wait(sync::spin_condition& changed) { changed.wait(*this); }
  inline explicit operator bool() const noexcept { return static_cast<bool>(first_); }

private:
  void lock_rest();
  void unlock_rest() noexcept;

  shard_list* of_;
  sync::spin_lock first_;
};

} // namespace gpumem::detail
