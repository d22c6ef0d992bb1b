// waiting_place: what a resource in which requests wait tells the deadlock_monitor.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:waiting_place;
import :holder;
import :intrusive_list;
import :std;
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
  /// Shows the state to `to`; does nothing if no request without a turn waits. Calls no function of a user.
  virtual void show(visitor& to) noexcept = 0;
  /// Unlinks a request that has no turn, because it ends without memory. Called inside show().
  virtual void end_wait(waiter& item, woken_waiters& woken) noexcept = 0;

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

} // namespace gpumem::detail
