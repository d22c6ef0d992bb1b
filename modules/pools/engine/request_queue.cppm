// Requests that wait for a pool's memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
export module gpumem:request_queue;
import :allocation_request;
import :error;
import :holder;
import :pool_parts;
import :pressure_call;
import :pressure_list;
import :stall_detector;
import :std;
import :sync;
import :waiter;

namespace gpumem::detail {

/// The requests that wait for memory of one pool, the scopes whose work holds it, and the functions that free some for
/// others. It decides which request has a turn, what is set aside for it, and which request ends so that others go on.
/// While a request waits, all frees take the locks of all shards, and call wake_next().
///
/// Functions of the first group take the locks of all shards themselves; those of the second are called under them.
export class request_queue final : public pressure_call::observer {
public:
  /// The pool that owns the queue. The queue calls each function under the locks of all shards.
  class owner {
  public:
    /// From now on no block stays in a thread cache.
    virtual void on_first_waiter() noexcept = 0;
    virtual bool has_deferred_frees() const noexcept = 0;
    virtual void run_deferred_frees() noexcept = 0;
    /// Whether the pool has neither handle, nor live block, nor request.
    virtual bool is_unused() const noexcept = 0;
    /// Posts a pass of the library thread: soon, or not before the moment.
    virtual void schedule_pass() noexcept = 0;
    virtual void post_late_pass(sync::time_point when) noexcept = 0;

  protected:
    ~owner() = default;
  };

  /// Refers to both.
  request_queue(pool_parts& parts, owner& of) noexcept
      : parts_{parts}, owner_{of}, queue_{parts.options.max_overtakes}, stall_{parts.options.stall_timeout} {}

  // Any thread, without a lock.
  /// Requests wait: no thread keeps what it frees.
  inline bool has_waiting() const noexcept { return admission_.load(std::memory_order_relaxed) == admission::queue; }
  inline bool is_closed() const noexcept { return admission_.load(std::memory_order_relaxed) == admission::closed; }
  /// Neither: a request that does not wait is admitted.
  inline bool is_open() const noexcept { return admission_.load(std::memory_order_relaxed) == admission::open; }

  /// The outcome of a request that asks to wait.
  enum class waiting : std::uint8_t {
    parked,   ///< it waits, and may be gone
    answered, ///< by complete(), or it was cancelled
    last,     ///< answered; the pool has neither handle nor block any more, and is the caller's to close
    turn,     ///< the caller tries to allocate for it, and then calls end_turn
  };
  /// With the count of changes at the beginning of the turn.
  struct turn {
    waiting what;
    std::uint64_t since = 0;
  };
  /// Parks the request, or gives it a turn. The caller makes the attempt itself: a hardened pool allocates in another
  /// way.
  turn begin_turn(waiter& item) noexcept;
  turn end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept;
  /// Withdraws a request; false if it does not wait, or has a turn. `last`: as above.
  bool cancel(waiter& item, bool& last) noexcept;
  /// Whether the memory could be there for a request that only asks for a turn, or for one of several parts.
  expected<void*, failure> may_go_on(waiter const& item) noexcept;
  /// Why a request that does not wait gets nothing while others do; none if it may overtake them.
  std::optional<outcome> refusal_at_admission(allocation_request const& request) noexcept;
  void on_holder_event(holder& unit, holder_event what) noexcept;
  /// Throws std::bad_alloc.
  void add_pressure_call(pressure_call& item);
  void remove_pressure_call(pressure_call& item) noexcept;
  /// `live`: bytes, as the users see them. Throws std::bad_alloc.
  std::string describe(std::size_t live);
  waiting_statistics read_statistics() noexcept;
  /// By the library thread: calls functions that free memory, ends requests so that others go on, and polls for what
  /// has completed.
  void run_pass() noexcept;

  // Under the locks of all shards.
  inline bool empty() const noexcept { return queue_.empty(); }
  /// From now on requests are refused with outcome::closed; wake_ended() answers those that wait.
  void set_closed() noexcept { admission_.store(admission::closed, std::memory_order_relaxed); }
  /// Something may let a request go on that was refused: a free, or a new limit.
  inline void count_change() noexcept { ++changes_; }
  /// The same; a pass of the library thread wakes requests, for calls that hold no list of woken waiters.
  void notify() noexcept;
  /// Gives turns as long as there could be memory for the next. A request that cannot be met any more is woken to be
  /// told so.
  void wake_next(woken_waiters& woken) noexcept;
  /// Wakes the requests that cannot be met any more: the limit has changed, or the pool is closed.
  void wake_ended(woken_waiters& woken) noexcept;
  /// All memory may be held by work that waits, as far as is known without a look at it.
  bool may_stall() const noexcept;
  /// Whether the library thread has something to look at.
  bool needs_pass() noexcept;
  void watch_for_stall() noexcept;
  /// Returns the number of passes since something was new, with this one.
  unsigned count_pass() noexcept { return ++waiting_passes_; }
  /// Calls `free_part`, which frees a part of a request of which another part was refused. The free counts as no change
  /// for requests of several parts: otherwise two of them would wake each other for ever.
  template <class Free> void return_part(Free free_part) noexcept {
    auto const before = changes_;
    free_part();
    returned_parts_ += changes_ - before;
    changes_ = before;
  }

private:
  enum class admission : std::uint8_t { open, queue, closed };

  // request_queue.cpp
  void give_turn(waiter& item, woken_waiters& woken) noexcept;
  void take_turn(waiter& item) noexcept;
  turn new_turn(waiter const& item) noexcept;
  void end_turn_of(waiter& item) noexcept;
  turn wait_again(waiter& item, turn const& mine, woken_waiters& woken) noexcept;
  bool remove_waiter(waiter& item, woken_waiters& woken) noexcept;
  bool ends(waiter const& item) const noexcept;
  bool fits(waiter const& item) const noexcept;
  bool is_held() const noexcept;
  bool waits_for_nothing(waiter const& item) const noexcept;
  std::size_t headroom(std::size_t its_own = 0) const noexcept;
  static std::size_t rounded(waiter const& item) noexcept;
  std::uint64_t change_count() const noexcept;
  std::uint64_t change_count(waiter const& item) const noexcept;
  std::uint64_t frees_of_others() const noexcept;

  // request_queue_passes.cpp
  bool is_work_pending() const noexcept;
  bool update_work_pending() noexcept;
  waiter* next_to_poll_for() noexcept;
  bool needs_poll() noexcept;
  void poll() noexcept;
  waiter* next_to_abort() noexcept;
  bool abort_one() noexcept; // false: none
  void schedule_poll() noexcept;
  std::size_t wanted() const noexcept;
  inline bool pressure_is_due() const noexcept { return pressure_list_.due() && wanted() > 0; }
  void call_pressure() noexcept;
  std::size_t begin_pressure(pressure_call& call) noexcept override;
  void end_pressure(pressure_call& call, std::size_t freed) noexcept override;

  pool_parts& parts_;
  owner& owner_;
  std::atomic<admission> admission_{admission::open};

  // Under the locks of all shards.
  waiter_list queue_;
  holder_list holders_;
  pressure_list pressure_list_;
  stall_detector stall_;
  std::size_t upstream_limit_ = SIZE_MAX; // the upstream has refused more than that
  std::size_t preempted_ = 0;        // bytes of holders whose requests were preempted, until their work is rolled back
  std::uint64_t changes_ = 1;        // frees and other changes that may let a waiting request go on
  std::uint64_t returned_parts_ = 0; // frees of parts of refused requests
  waiter const* multi_part_ = nullptr; // the request of several parts that tries to allocate them
  bool work_was_pending_ = false;      // whether streams still used free memory at the last poll
  unsigned waiting_passes_ = 0;        // passes of the library thread since the last change
};

} // namespace gpumem::detail
