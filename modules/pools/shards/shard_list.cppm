// The shards of a pool, their locks, and the shard of each thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:shard_list;
import :block;
import :pool_shard;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// The shards of a pool, which are parts with a lock and free ranges of their own: one at first. A thread that often
/// finds its shard's lock taken gets a shard of its own, for its small and medium blocks. Large blocks come from the
/// first shard, whose memory all threads share. Eight threads that replayed traces with their large blocks in shards of
/// their own reserved twice as much. Threads are told apart by 64 slots: each thread uses the slot of its
/// index modulo 64. A block goes back to the shard that it came from, whichever thread frees it.
///
/// A shard is active while its threads allocate under locks. The pool's mode and its growth follow the number of active
/// shards. An inactive shard without a live block becomes spare: its thread uses the first shard again. Its free memory
/// stays in it, for requests that search all shards. The next thread that needs a shard gets a spare one. No shard is
/// destroyed before the pool, since find_live() reads the shards without a lock.
export class shard_list {
public:
  /// The first shard, one for each of the 64 slots of threads, and one for loans.
  static constexpr std::size_t max_shards = 66, slots = 64;
  /// A round ends after this many locked calls of one shard, at an allocation that takes all locks, and at each trim().
  /// A shard whose threads do not allocate for a round is inactive.
  /// Utilization: no change.
  static constexpr std::uint64_t calls_per_round = std::uint64_t{sync::contention_threshold} * 8;

  /// `poll_share`: share of the time that each shard may spend on polls of events. `shard_per_thread`: each thread gets
  /// a shard of its own at its first request, even if it has found no lock taken, for large blocks too.
  explicit shard_list(double poll_share = 1, bool shard_per_thread = false)
      : poll_share_{poll_share}, shard_per_thread_{shard_per_thread} {
    add(false);
  }
  shard_list(shard_list const&) = delete;
  shard_list& operator=(shard_list const&) = delete;

  /// Returns the calling thread's shard. Any thread.
  inline pool_shard& shard_of_thread() noexcept { return *own_slot().shard.load(std::memory_order_acquire); }
  /// Returns whether requests of this size use the first shard, whichever thread makes them.
  inline bool is_shared(std::size_t bytes) const noexcept {
    return bytes > size_class::largest_medium && !shard_per_thread_;
  }
  /// Returns the shard for a request of the thread with this index; null if the thread is to get a shard of its own.
  inline pool_shard* uncontended_shard(unsigned thread, std::size_t bytes) noexcept {
    if (is_shared(bytes)) return shards_[0].get();
    auto const& mine = slots_[thread % slots];
    return mine.contention.load(std::memory_order_relaxed) < sync::contention_threshold
               ? mine.shard.load(std::memory_order_acquire)
               : nullptr;
  }
  /// Returns the shard of the thread with this index.
  inline pool_shard& shard_of(unsigned thread) noexcept {
    return *slots_[thread % slots].shard.load(std::memory_order_acquire);
  }
  /// Returns the number of active shards. Any thread.
  inline std::size_t active() const noexcept { return active_.load(std::memory_order_relaxed); }
  /// Returns whether only one shard is active. Other shards may still hold memory and live blocks. Any thread.
  inline bool single() const noexcept { return active() <= 1; }
  /// Returns the number of shards that are not spare.
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t in_use() const noexcept { return in_use_; }
  /// Returns all shards, spare ones too. None is added while the caller holds the lock of any shard.
  inline std::span<std::unique_ptr<pool_shard> const> all() const noexcept {
    return {shards_.data(), count_.load(std::memory_order_acquire)};
  }

  /// The shards whose memory may serve a request; or with `loans` all shards, for polls. They are in a search order
  /// that starts with `first`. The caller holds the lock of any shard.
  class search_order {
  public:
    search_order(shard_list const& list, pool_shard& first, bool loans = true) noexcept;
    operator shard_span() const noexcept { return {order_.data(), count_}; }

  private:
    std::array<pool_shard*, max_shards> order_;
    std::size_t count_ = 0;
  };
  /// Returns all shards, the first one first.
  inline search_order everywhere() const noexcept { return {*this, *shards_[0]}; }

  /// Takes the lock of a shard that a try_lock() has found taken. If it is that of the first shard, which is
  /// the calling thread's, counts the collision.
  void lock_contended(pool_shard& shard) noexcept GPUMEM_ACQUIRES(shard.mutex);
  /// Waits until another thread notifies `changed`. Unlocks all shards during the wait.
  GPUMEM_REQUIRES(one_shard, all_shards) void wait(sync::spin_condition& changed);

  /// Prepares an allocation of the calling thread. Unless the size is_shared(), makes the thread's shard active. If
  /// `may_add`, and the thread has met other threads at the first shard's lock `contention_threshold` times lately,
  /// first gives it a shard of its own. Ends the round after `calls_per_round` locked calls of the shard that
  /// serves the request. Returns whether the number of active shards, or of those in use, has changed.
  GPUMEM_REQUIRES(one_shard, all_shards) bool begin_allocation(std::size_t bytes, bool may_add) noexcept;
  /// Returns the shard whose blocks are loans, and adds it first if there is none. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard, all_shards) pool_shard& lending();
  /// Gives the calling thread a shard of its own. Does nothing if the host has no memory for one.
  GPUMEM_REQUIRES(one_shard, all_shards) void add_for_thread() noexcept;
  /// Ends a round: a shard from which its threads have not allocated for a whole round becomes inactive, and spare if
  /// it has no live block. The only active shard becomes spare too if it has none: its thread meets no other one.
  /// Returns whether the number of active shards, or of those in use, has changed.
  GPUMEM_REQUIRES(one_shard, all_shards) bool end_round() noexcept;

  /// The block that starts at an address and is not free, and its shard; both null if there is no such block. Found
  /// without a lock, so certain only for the owner of the block. Other callers check the block again under the shard's
  /// lock.
  struct lookup {
    block* that = nullptr;
    pool_shard* shard = nullptr;
  };
  inline lookup find_live(void const* pointer) noexcept {
    auto& last = own_slot().last_freed_shard;
    auto* const likely = last.load(std::memory_order_relaxed);
    if (auto* const that = likely->find_live(pointer)) return {that, likely};
    return find_in_all(pointer, last);
  }

  /// Counts a change of the live bytes of a shard, and raises the peak. The caller holds the shard's lock. `nearby`:
  /// bytes that count as live although they are free, in the calling thread's cache. `reserved`: those of the pool.
  [[gnu::always_inline]] GPUMEM_REQUIRES(one_shard) inline void count_live(pool_shard& shard, std::int64_t change,
                                                                           std::int64_t nearby,
                                                                           std::size_t reserved) noexcept {
    if (all().size() > 1) return count_live_of_many(shard, change, nearby, reserved);
    peak_.count_alone(shard.live, change, nearby);
  }
  /// Returns the peak of the live bytes. Any thread.
  inline std::size_t peak_live() const noexcept { return peak_.peak(); }
  /// Sets the peak to the live bytes. `cached`: the bytes in thread caches, which the shards count as live.
  GPUMEM_REQUIRES(one_shard, all_shards) void reset_peak(std::int64_t cached) noexcept;
  // Return sums over all shards. Blocks in thread caches count as live.
  GPUMEM_REQUIRES(one_shard, all_shards) std::int64_t live_bytes() const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) std::int64_t live_blocks() const noexcept;
  /// Returns the bytes on the free lists.
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t free_bytes() const noexcept;
  /// Returns the number of calls that took a lock of a shard.
  GPUMEM_REQUIRES(one_shard, all_shards) std::uint64_t locked_calls() const noexcept;

private:
  friend class all_shards_lock;
  friend class all_shards_unlock;
  // The slot of a thread. A slot has cache lines of its own, because its thread writes to it when the thread frees
  // blocks of other shards.
  struct alignas(false_sharing_distance) thread_slot {
    std::atomic<pool_shard*> shard{nullptr};
    std::atomic<pool_shard*> last_freed_shard{nullptr}; // shard of the block that the last search found
    // The number of times that the slot's threads found the first shard's lock taken, lately and in this window.
    std::atomic<std::uint32_t> contention{0};
    std::uint32_t in_window GPUMEM_GUARDED_BY(one_shard) = 0;
    std::uint64_t window_begin GPUMEM_GUARDED_BY(one_shard) = 0; // as counters.locked_calls of that shard
  };

  inline thread_slot& own_slot() noexcept { return slots_[sync::thread_index() % slots]; }
  inline std::uint32_t first_contention() const noexcept { return shard_per_thread_ ? sync::contention_threshold : 0; }
  pool_shard& add(bool locked);
  GPUMEM_REQUIRES(one_shard, all_shards) pool_shard* find_spare() noexcept;
  void lock_all() noexcept;
  void unlock_all() noexcept;
  lookup find_in_all(void const* pointer, std::atomic<pool_shard*>& last) noexcept;
  GPUMEM_REQUIRES(one_shard)
  void count_live_of_many(pool_shard& shard, std::int64_t change, std::int64_t nearby, std::size_t reserved) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) bool note_change(std::size_t earlier, std::size_t used) noexcept;

  double const poll_share_;
  bool const shard_per_thread_;
  std::array<std::unique_ptr<pool_shard>, max_shards> shards_;
  std::atomic<unsigned> count_{0};
  std::atomic<unsigned> active_{0};
  std::size_t in_use_ GPUMEM_GUARDED_BY(all_shards) = 1;
  std::array<thread_slot, slots> slots_;
  peak_tracker peak_;
};

/// Holds the lock of one shard.
export class GPUMEM_SCOPED_LOCK shard_lock {
public:
  /// If another thread holds the lock, counts a collision (shard_list::lock_contended).
  [[gnu::always_inline]] inline shard_lock(shard_list& shards, pool_shard& shard) GPUMEM_ACQUIRES(one_shard)
      GPUMEM_ACQUIRES_SHARED(all_shards)
      : mutex_{shard.mutex} {
    if (!mutex_.try_lock()) shards.lock_contended(shard);
  }
  /// Takes over the shard's lock, which the calling thread holds.
  inline shard_lock(pool_shard& shard, std::adopt_lock_t) noexcept GPUMEM_REQUIRES(shard.mutex)
      GPUMEM_ACQUIRES(one_shard) GPUMEM_ACQUIRES_SHARED(all_shards)
      : mutex_{shard.mutex} {}
  shard_lock(shard_lock const&) = delete;
  shard_lock& operator=(shard_lock const&) = delete;
  GPUMEM_RELEASES() inline ~shard_lock() { mutex_.unlock(); }

private:
  sync::spin_mutex& mutex_;
};

/// Holds the locks of all shards.
export class GPUMEM_SCOPED_LOCK all_shards_lock {
public:
  inline explicit all_shards_lock(shard_list& shards) GPUMEM_ACQUIRES(one_shard, all_shards) : list_{shards} {
    list_.lock_all();
  }
  all_shards_lock(all_shards_lock const&) = delete;
  all_shards_lock& operator=(all_shards_lock const&) = delete;
  GPUMEM_RELEASES() inline ~all_shards_lock() { list_.unlock_all(); }

private:
  shard_list& list_;
};

/// Unlocks all shards for a scope, in functions that are called with the locks held.
export class GPUMEM_SCOPED_LOCK all_shards_unlock {
public:
  inline explicit all_shards_unlock(shard_list& shards) GPUMEM_RELEASES(one_shard, all_shards) : list_{shards} {
    list_.unlock_all();
  }
  all_shards_unlock(all_shards_unlock const&) = delete;
  all_shards_unlock& operator=(all_shards_unlock const&) = delete;
  GPUMEM_RELEASES() inline ~all_shards_unlock() { list_.lock_all(); }

private:
  shard_list& list_;
};

} // namespace gpumem::detail
