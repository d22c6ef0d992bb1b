// The parts of a pool, each with a lock of its own, and which thread goes to which.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/figures.hpp>
#include <chrono>
#include <mutex>
#include <span>
export module gpumem:shards;
import :block;
import :live_meter;
import :ranges;
import :relaxed;
import :std;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {

/// How often the ways were taken that figures do not tell of.
export struct pool_paths {
  std::uint64_t near_hits = 0;    ///< granted out of a magazine
  std::uint64_t spare_hits = 0;   ///< granted out of a span
  std::uint64_t locked_calls = 0; ///< allocations and frees that took a lock of the pool
  std::uint64_t all_locked = 0;   ///< those among them that took the locks of several shards
  std::uint64_t shards = 0;       ///< how many there are
  std::uint64_t borrowed = 0;     ///< granted out of another thread's shard
  std::uint64_t posted = 0;       ///< freed into a shard whose lock was taken
  std::uint64_t adopted = 0;      ///< chunks that changed shards
  std::uint64_t made_way = 0;     ///< times that free pages went for a growth
  std::uint64_t moved = 0;        ///< times that they moved to where it lacked them
  std::uint64_t swept = 0;        ///< blocks taken out of magazines
  std::uint64_t refused = 0;      ///< frees of small and medium blocks that found no credit for their size
  std::uint64_t completed = 0;    ///< ranges that a stream's completion gave to all
};

/// A burst of looks, before the next may come no sooner than the share says.
inline constexpr time_budget::nanoseconds most_looks_saved = std::chrono::microseconds{200};

/// Some of a pool's chunks, and what was counted of them. Guarded by its lock.
export struct alignas(far_apart) pool_shard {
  explicit pool_shard(double look_share) noexcept : looks{look_share, most_looks_saved, sync::now()} {}

  sync::quick_mutex guard;
  range_map ranges;
  figures counts; ///< sizes are filled in when asked for
  pool_paths paths;
  live_part live;
  std::int64_t live_blocks = 0; ///< with those that are kept near threads
  std::size_t reserved = 0;
  std::unique_ptr<virtual_pages> pages; ///< of pools that draw pages; one thread at a time calls it, without the lock
  chunk* paged = nullptr;               ///< what is mapped of them, holes included
  alignas(128) std::atomic<block*> posted{nullptr}; ///< linked by `next`; any thread puts, the lock's holder takes
  alignas(128) time_budget looks;                   ///< at requests that find nothing, for what has completed
  unsigned borrowings = 0;                          ///< of its threads, in quick succession
  std::uint64_t borrowed_at = 0;                    ///< after how many locked calls it was the last time
  alignas(128) relaxed<std::uintptr_t> first_address;
  relaxed<std::size_t> addresses{SIZE_MAX}; ///< from there on its blocks lie; of chunks, anywhere

  /// As of its ranges; what it cannot have is not searched for: who holds the lock writes there all the time.
  inline block* granted_at(void const* pointer) const noexcept {
    bool const may_be = reinterpret_cast<std::uintptr_t>(pointer) - first_address < addresses;
    return may_be ? ranges.granted_at(pointer) : nullptr;
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
  static constexpr std::size_t most = 65; ///< one, and one for each of as many threads as are told apart

  /// `look_share`: of the time of each shard that it may spend on looks.
  explicit shard_list(double look_share = 1) : look_share_{look_share} { add(); }
  shard_list(shard_list const&) = delete;
  shard_list& operator=(shard_list const&) = delete;

  /// The calling thread's. Any thread.
  inline pool_shard& own() noexcept { return *own_seat().home.load(std::memory_order_acquire); }
  /// The same, of the thread of that number; null where it has met others there too often.
  inline pool_shard* quiet_own(unsigned me) noexcept {
    auto const& mine = seats_[me % (most - 1)];
    return mine.met.load(std::memory_order_relaxed) < sync::patience ? mine.home.load(std::memory_order_acquire)
                                                                     : nullptr;
  }
  /// The shard of the thread of that number.
  inline pool_shard& home_of(unsigned me) noexcept {
    return *seats_[me % (most - 1)].home.load(std::memory_order_acquire);
  }
  inline bool single() const noexcept { return count_.load(std::memory_order_relaxed) == 1; }
  /// They do not change under any of the locks; without one others may be added.
  inline std::span<std::unique_ptr<pool_shard> const> all() const noexcept {
    return {shards_.data(), count_.load(std::memory_order_acquire)};
  }

  /// All, beginning with one. Under any of the locks.
  class from {
  public:
    from(shard_list const& list, pool_shard& first) noexcept;
    operator shard_span() const noexcept { return {order_.data(), count_}; }

  private:
    std::array<pool_shard*, most> order_;
    std::size_t count_ = 0;
  };

  /// Takes a shard's lock.
  inline sync::quick_lock enter(pool_shard& one) {
    if (!one.guard.try_lock()) wait_for(one);
    return {one.guard, std::adopt_lock};
  }

  /// The calling thread has found the lock of a shard that it shares with others taken too often.
  inline bool crowded() noexcept { return own_seat().met.load(std::memory_order_relaxed) >= sync::patience; }
  /// Gives it a shard of its own, where the host has memory for one. Under all locks.
  void spread() noexcept;

  /// Where the block lies that begins there and is not free. Without a lock: for whoever owns the block, and to be
  /// looked at again under the shard's lock by others.
  struct found {
    block* that = nullptr;
    pool_shard* shard = nullptr;
  };
  inline found granted_at(void const* pointer) noexcept {
    auto& last = own_seat().freed_into;
    auto* const likely = last.load(std::memory_order_relaxed);
    if (auto* const that = likely->granted_at(pointer)) return {that, likely};
    if (single()) return {};
    return look_everywhere(pointer, last);
  }

private:
  friend class shard_locks;
  // A thread's: far from others', since it writes there when it frees what others have.
  struct alignas(far_apart) seat {
    std::atomic<pool_shard*> home{nullptr};
    std::atomic<pool_shard*> freed_into{nullptr}; // last, what was not kept
    std::atomic<std::uint32_t> met{0};            // locks found taken, while it has no shard of its own
    std::atomic<bool> alone{false};
  };

  inline seat& own_seat() noexcept { return seats_[sync::thread_number() % (most - 1)]; }
  void add();
  void wait_for(pool_shard& one) noexcept;
  found look_everywhere(void const* pointer, std::atomic<pool_shard*>& last) noexcept;

  double const look_share_;
  std::array<std::unique_ptr<pool_shard>, most> shards_;
  std::atomic<unsigned> count_{0};
  std::array<seat, most - 1> seats_;
};

/// The locks of all shards, held together. What changes only under all of them may be read under any.
export class shard_locks {
public:
  explicit shard_locks(shard_list& of) : of_{&of} { lock(); }
  ~shard_locks() {
    if (first_) unlock();
  }
  shard_locks(shard_locks const&) = delete;
  shard_locks& operator=(shard_locks const&) = delete;

  inline void lock() {
    first_ = of_->enter(*of_->shards_[0]);
    if (!of_->single()) lock_rest();
  }
  inline void unlock() {
    if (!of_->single()) unlock_rest();
    first_.unlock();
  }
  /// Gives them up for the time of the wait.
  inline void wait(sync::quick_condition& changed) { changed.wait(*this); }
  inline explicit operator bool() const noexcept { return static_cast<bool>(first_); }

private:
  void lock_rest();
  void unlock_rest() noexcept;

  shard_list* of_;
  sync::quick_lock first_;
};

} // namespace gpumem::detail
