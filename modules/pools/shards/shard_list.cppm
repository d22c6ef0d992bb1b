// The shards of a pool, and which thread goes to which.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shard_list;
import :block;
import :pool_shard;
import :relaxed_atomic;
import :std;
import :sync;

namespace gpumem::detail {

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
