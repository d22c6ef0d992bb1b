// The deadlock monitor, and the places at which it looks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <string>
export module gpumem:deadlock_monitor;
import :holder;
import :intrusive_list;
import :std;
import :sync;
import :timer;
import :waiter;

namespace gpumem::detail {

/// The state of a place, shown while its lock is held. Bytes are requested ones, but for `headroom` and `needed`, which
/// the place rounds.
export struct place_state {
  waiter_list& queue;       ///< has a request without a turn
  std::size_t in_use;       ///< bytes of live blocks, and those set aside for requests that have passed the place
  std::size_t headroom;     ///< bytes that the first request could get now
  std::size_t needed;       ///< bytes that the first request needs
  bool fits = false;        ///< the first request was refused although it needs no more than `headroom`
  bool may_go_on = false;   ///< without a free of a block something may give the first request memory
  bool has_stalled = false; ///< nothing was granted or freed for the time after which a request ends
};

/// A resource in which requests wait. The deadlock_monitor looks at it.
export class waiting_place {
public:
  waiting_place() = default;
  waiting_place(waiting_place const&) = delete;
  waiting_place& operator=(waiting_place const&) = delete;

  /// Calls a function with the state, under the lock of the place.
  class visitor {
  public:
    virtual void see(place_state const& state) noexcept = 0;

  protected:
    ~visitor() = default;
  };
  /// Shows the state to `visitor`; does nothing if no request without a turn waits. Calls no function of a user.
  virtual void show(visitor& visitor) noexcept = 0;
  /// Unlinks a request that has no turn, because it ends without memory. Called inside show().
  virtual void end_wait(waiter& item, woken_waiters& waiters) noexcept = 0;

protected:
  ~waiting_place() = default;

private:
  friend class deadlock_monitor;
  friend class intrusive_list<waiting_place>;

  // Guarded by the lock of the deadlock_monitor, which writes them each time that it looks.
  list_links<waiting_place> links_;
  std::uint64_t seen_ = 0;  // the queue's count of changes
  bool blocked_ = false;    // all bytes in use are held by work that waits for places that are blocked, too
  std::size_t held_up_ = 0; // bytes that such work holds here
};

/// Knows all holders and all places of the process.
///
/// A holder *waits* if a request of it is parked, or if it is marked as waiting for something else. A place is
/// *blocked* if all bytes in use are held by holders that wait, and none of these can go on. So each of them is marked,
/// or has a request at a blocked place. The blocked places are the largest set of which this is true. It is found by
/// leaving out places until no other place has to be left out. If there are blocked places, their requests wait for
/// ever, so the monitor ends one of them.
///
/// If the first request of a place lacks memory, requests of younger work that can be rolled back are preempted: they
/// end, and their work is rolled back. The youngest goes first, until the first request has enough. This is wound-wait:
/// Rosenkrantz, Stearns, Lewis, "System level concurrency control for distributed database systems" (1978).
export class deadlock_monitor final : timer {
public:
  /// Returns the monitor of the process, which is never destroyed.
  static deadlock_monitor& get() noexcept;

  /// The caller of add() and remove() holds no lock of a place. In a forked child these calls do nothing.
  void add(waiting_place& place) noexcept;
  void remove(waiting_place& place) noexcept;
  void add(holder& unit) noexcept;
  void remove(holder& unit) noexcept;

  /// Ends requests until no request must end. Takes the locks of the places, one after the other.
  void look() noexcept;
  /// Makes the library thread call look() soon. The caller may hold the lock of a place.
  void schedule() noexcept;

  /// Calls `f(holder, bytes, waits)` for each holder that has memory at the place, its own or that of nested holders,
  /// under the lock of the monitor. `bytes` are its own. `waits`: a request of it is parked without a turn, at any
  /// place.
  template <class F> void visit(waiting_place const& place, F f) {
    sync::lock const lock{mutex_};
    note_parked(false);
    for (auto* each = holders_.first(); each; each = each->links_.next) {
      auto const bytes = bytes_at(*each, place);
      if (bytes > 0 || (each->nested() > 0 && is_at(*each, place))) f(*each, bytes, each->parked_);
    }
  }

  /// A request that is parked.
  struct parked_request {
    std::string holder; ///< its name
    std::size_t bytes;
    int priority;
    sync::time_point since;
  };
  /// Returns the requests that wait at other places, for holders whose memory lies at this place: for example at a
  /// limiting_adaptor over a pool. Throws std::bad_alloc.
  std::vector<parked_request> parked_before(waiting_place const& place);

private:
  // The requests that one call of end_some() ends, and those that got a turn. The destructor calls functions of users,
  // so the object is declared before the lock.
  struct ends {
    ended_waiters preempted{outcome::preempted}, stalled{outcome::stalled};
    woken_waiters woken;
    bool any() const noexcept { return !preempted.empty() || !stalled.empty(); }
  };
  // Work that a request needs to be rolled back, and bytes at the request's place.
  struct yielding {
    holder* last = nullptr; // the youngest; null if there is none
    std::size_t held = 0;   // bytes that all such work holds
    std::size_t coming = 0; // bytes that work held when it was preempted, and that is not rolled back yet
  };

  deadlock_monitor() = default;
  void expire() noexcept override;
  bool end_some() noexcept;

  template <class F> void change(F f) noexcept;

  // Called with the lock held.
  template <class F> static void show(waiting_place& place, F f) noexcept;
  template <class F> void each_place(F f) noexcept GPUMEM_REQUIRES(mutex_);
  template <class F> void each_holder(F f) noexcept GPUMEM_REQUIRES(mutex_);
  bool begin_look() noexcept GPUMEM_REQUIRES(mutex_);
  void note_parked(bool at_blocked) noexcept GPUMEM_REQUIRES(mutex_);
  void preempt_for_first(ends& ends) noexcept GPUMEM_REQUIRES(mutex_);
  bool find_blocked() noexcept GPUMEM_REQUIRES(mutex_);
  void add_held_up() noexcept GPUMEM_REQUIRES(mutex_);
  void end_blocked(ends& ends) noexcept GPUMEM_REQUIRES(mutex_);
  void end_stalled(ends& ends) noexcept GPUMEM_REQUIRES(mutex_);
  bool is_as_seen() noexcept GPUMEM_REQUIRES(mutex_);
  yielding find_yielding(waiting_place const& place, waiter const& first) noexcept GPUMEM_REQUIRES(mutex_);
  void note_coming() noexcept GPUMEM_REQUIRES(mutex_);
  void preempt(holder* victim, ends& ends) noexcept GPUMEM_REQUIRES(mutex_);
  static bool is_held_up(waiting_place const& place, place_state const& state) noexcept;
  static bool is_at(holder const& unit, waiting_place const& place) noexcept;
  static std::size_t bytes_at(holder const& unit, waiting_place const& place) noexcept;

  sync::mutex mutex_;
  intrusive_list<waiting_place> places_ GPUMEM_GUARDED_BY(mutex_);
  intrusive_list<holder> holders_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<bool> scheduled_{false};
};

} // namespace gpumem::detail
