// Waiters: requests that a resource may keep until memory is free, and the list in which they wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <utility>
export module gpumem:waiter;
import :cuda;
import :error;
import :holder;
import :intrusive_list;
import :std;
import :stream;
import :sync;

namespace gpumem::extend {

export class waiter;

/// One of the blocks for which a request asks.
export struct request_part {
  stream_key stream;       ///< the stream in whose order the memory is valid
  std::size_t bytes;       ///< requested bytes; 0 in a request for a turn (see waiter)
  std::size_t alignment;   ///< in bytes; a power of two
  void* pointer = nullptr; ///< set when the memory is granted
};

/// Tells an adaptor that a request was granted. An adaptor that counted the bytes earlier, when the request passes
/// through it, would also count requests that end without memory.
export class grant_hook {
public:
  /// Called for each part that is granted, in the order of the parts.
  virtual void on_grant(waiter const& item, request_part const& part) noexcept = 0;
  /// Called if the request ends without memory. Not called if the request is withdrawn: the adaptor sees the call of
  /// cancel_waiter() instead.
  virtual void on_refusal(waiter&) noexcept {}

protected:
  ~grant_hook() = default;
};

/// A request for memory that may wait in a resource. To park a waiter is to keep it in the resource until memory is
/// free. The resource's `admit(waiter&)` has three answers. It parks the waiter and returns true; it calls complete()
/// and returns false; or it only returns false, and the request ends as exhausted.
///
/// A parked waiter is decided exactly once. The resource may unlink it under its lock; without the lock it then calls
/// grant() or refuse(), and does not touch the waiter again. Or cancel_waiter() makes the resource forget the waiter.
///
/// Some resources must not touch the waiter's stream in a call that frees memory. They decide in two steps. Under its
/// lock, the resource gives the waiter a turn: bytes are set aside for it. Without the lock, the resource calls wake()
/// and does not touch the waiter again. The woken operation calls admit() a second time. That call allocates, or parks
/// the waiter again in its old place. While the waiter has its turn, cancel_waiter() returns false. Only if
/// is_being_destroyed() does it end the turn and make the resource forget the waiter.
export class waiter {
public:
  waiter(waiter const&) = delete;
  waiter& operator=(waiter const&) = delete;

  /// Returns the stream of the first part. Only acquire_all makes requests of more than one part.
  inline stream_key const& stream() const noexcept { return first_.stream; }
  /// Returns the alignment of the first part, in bytes.
  inline std::size_t alignment() const noexcept { return first_.alignment; }
  /// Returns the sum of the requested bytes of all parts.
  inline std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the sum of `round(bytes)` over all parts.
  template <class Round> std::size_t bytes_by(Round round) const noexcept {
    if (asks_for_turn()) return round(bytes_);
    auto sum = round(first_.bytes);
    for (auto const& each : more_) sum += round(each.bytes);
    return sum;
  }
  /// Returns whether the request has more than one part.
  inline bool has_parts() const noexcept { return !more_.empty(); }
  /// Returns the number of parts.
  inline std::size_t parts() const noexcept { return 1 + more_.size(); }
  /// Returns part number `i`, counted from 0.
  inline request_part& part(std::size_t i) noexcept { return i == 0 ? first_ : more_[i - 1]; }
  /// Returns whether the request asks for no memory, but only for a turn in which bytes() are set aside.
  inline bool asks_for_turn() const noexcept { return first_.bytes == 0 && bytes_ > 0 && more_.empty(); }

  /// Allocates all parts or none; for the admit() of a resource. `allocate(part)` returns expected<void*, failure>;
  /// `deallocate(part)` frees a part again. Returns the first part's pointer, or the failure.
  template <class Allocate, class Deallocate>
  expected<void*, failure> allocate_parts(Allocate allocate, Deallocate deallocate) noexcept {
    for (std::size_t i = 0; i < parts(); ++i) {
      auto& one = part(i);
      if (one.bytes == 0) continue;
      auto const result = allocate(std::as_const(one));
      if (result) {
        one.pointer = *result;
        continue;
      }
      while (i-- > 0) {
        if (part(i).pointer) deallocate(std::as_const(part(i)));
        part(i).pointer = nullptr;
      }
      return unexpected<failure>{failure{result.error().reason, result.error().code, bytes_}};
    }
    return first_.pointer;
  }

  /// Returns the priority: requests of a higher priority go first. A request of a holder has the holder's priority.
  inline int priority() const noexcept { return priority_; }
  /// Returns the holder (a unit of work, such as a scope) that asks; null if there is none.
  inline class holder* holder() const noexcept { return holder_; }
  /// Sets the holder, whose priority and age the request takes. Called before the request is parked; later calls do
  /// nothing.
  void set_holder(class holder& of) noexcept;
  /// Returns a number that the resource may keep with the waiter, under its lock; initially 0.
  inline std::uint64_t seen_changes() const noexcept { return seen_changes_; }
  /// Sets the number that seen_changes() returns.
  inline void set_seen_changes(std::uint64_t value) noexcept { seen_changes_ = value; }

  /// Answers the request from inside admit(). Called without the resource's lock, since it calls the hooks of adaptors,
  /// which may call other resources.
  void complete(expected<void*, failure> result) noexcept;

  /// Grants a parked request. The memory is valid in the order of the waiter's stream once the operation has resumed.
  void grant(void* pointer) noexcept;
  /// Ends a parked request without memory.
  void refuse(failure const& why) noexcept;

  /// Tells a parked request that it has a turn. The operation then resumes and calls admit() again.
  void wake() noexcept { on_complete(); }
  /// Returns whether the operation ends without asking again. If so, cancel_waiter() also ends a turn.
  inline bool is_being_destroyed() const noexcept { return being_destroyed_; }

  /// Adds an adaptor's hook, which is called at the grant or refusal; hooks that were added last are called first.
  /// Returns false if there are `max_hooks` already.
  bool add_hook(grant_hook& hook) noexcept;

  /// Returns whether the adaptor of this hook has passed the request on to its upstream. A request that admit() sees
  /// again is not held up or counted by the adaptor a second time. If other threads can call this, mark_passed() and
  /// clear_passed() for the same hook, the adaptor's lock guards the calls.
  bool has_passed(grant_hook const& by) const noexcept;
  /// Notes that the request has passed the adaptor.
  void mark_passed(grant_hook const& by) noexcept;
  /// Takes mark_passed() back. Returns false if the request has not passed the adaptor.
  bool clear_passed(grant_hook const& by) noexcept;

  /// Returns whether a stop or the deadline has cancelled the request. A resource checks this under its lock before it
  /// parks the waiter. If it is true, the resource answers with refusal() instead.
  inline bool cancelled() const noexcept { return refusal() != outcome::exhausted; }
  /// Returns the outcome of a request that gets no memory and does not wait. After a cancellation this is
  /// outcome::stopped or outcome::deadline, whichever came first; otherwise outcome::exhausted.
  inline outcome refusal() const noexcept { return refusal_.load(std::memory_order_acquire); }

protected:
  waiter(stream_key const& stream, std::size_t bytes, std::size_t alignment, int priority = 0) noexcept
      : first_{stream, bytes, alignment}, bytes_{bytes}, priority_{priority} {}
  /// `more` must live as long as the waiter. The sum of all bytes is at most PTRDIFF_MAX, or `bytes` if that is more.
  waiter(stream_key const& stream, std::size_t bytes, std::size_t alignment, int priority,
         std::span<request_part> more) noexcept;
  ~waiter() = default;

  /// Makes the operation resume. The caller must not touch the waiter afterwards.
  virtual void on_complete() noexcept = 0;

  /// Returns false if the request was cancelled before: only the first reason counts.
  bool set_cancelled(outcome why) noexcept {
    auto before = outcome::exhausted;
    return refusal_.compare_exchange_strong(before, why, std::memory_order_acq_rel);
  }
  inline bool is_complete() const noexcept { return complete_; }
  inline bool was_stopped() const noexcept {
    return complete_ && !result_ && result_.error().reason == outcome::stopped;
  }
  expected<void*, failure> take_result() noexcept;
  /// Called before admit() is called again: in that call the adaptors add their hooks again.
  void clear_hooks() noexcept { hook_count_ = 0; }
  void set_being_destroyed() noexcept { being_destroyed_ = true; }
  void ask_for_turn() noexcept { first_.bytes = 0; }

private:
  friend class waiter_list;
  friend class woken_waiters;
  friend class detail::intrusive_list<waiter>;
  static constexpr std::size_t max_hooks = 8;

  request_part first_;
  std::span<request_part> more_;
  std::size_t bytes_;
  class holder* holder_ = nullptr;
  int priority_;
  unsigned overtaken_ = 0; // how often other requests have overtaken it since it was parked
  std::uint64_t seen_changes_ = 0;
  expected<void*, failure> result_{nullptr};
  std::array<grant_hook*, max_hooks> hooks_{};
  std::size_t hook_count_ = 0;
  std::array<std::atomic<grant_hook const*>, max_hooks> passed_{}; // atomic: its users hold different locks
  std::atomic<outcome> refusal_{outcome::exhausted};
  bool complete_ = false;
  bool being_destroyed_ = false;

  detail::list_links<waiter> links_;
  bool parked_ = false;
  std::uint64_t age_ = 0;          // as holder::age()
  std::uint64_t turns_before_ = 0; // turns that the list had given, up to and including the waiter's own
  bool was_refused_ = false;       // whether it got no memory in a turn although enough bytes were set aside
  bool exclusive_ = false;         // whether no other request gets a turn while this one has a turn
  sync::time_point parked_since_;
  std::size_t turn_ = 0; // bytes set aside in its turn; 0 without a turn
  waiter* next_woken_ = nullptr;
};

/// Waiters that got a turn. The destructor wakes them, which must happen without the lock of the resource. So declare
/// the object before the lock is taken.
export class woken_waiters {
public:
  woken_waiters() = default;
  woken_waiters(woken_waiters const&) = delete;
  woken_waiters& operator=(woken_waiters const&) = delete;
  ~woken_waiters();
  /// Adds a waiter that got a turn.
  void add(waiter& item) noexcept;

private:
  waiter* first_ = nullptr;
  waiter** end_ = &first_;
};

/// Statistics of the requests that are parked in a waiter_list.
export struct waiting_statistics {
  std::uint64_t requests = 0; ///< number of parked requests
  std::size_t bytes = 0;      ///< bytes for which these requests ask
  sync::duration oldest{};    ///< how long the oldest request has waited
};

/// Parked requests by priority, and within one priority in order of arrival. The lock of the resource that keeps the
/// list guards it. For a request of a holder, the arrival is the time at which the holder was made: older work goes
/// first.
///
/// A turn goes to the first request without one. If there is too little memory for that request, a smaller one among
/// the next `max_overtakes` requests may overtake it. It may do so only if no request before it has been overtaken
/// `max_overtakes` times. A request that has a turn cannot be overtaken, since its bytes are set aside. If a request
/// gets no memory in its turn nevertheless, all requests that got a turn meanwhile count as having overtaken it. Once
/// it was overtaken `max_overtakes` times, it gets its next turn alone: no other request gets a turn meanwhile.
export class waiter_list {
public:
  /// Makes an empty list. 0: no request may overtake another.
  explicit waiter_list(unsigned max_overtakes = 0) noexcept : max_overtakes_{max_overtakes} {}

  /// Parks the waiter. Returns false if the request was cancelled. Time grows with the number of parked requests that
  /// go after this one.
  bool park(waiter& item) noexcept;
  /// Unlinks the waiter. Returns false if it is not parked: the request was decided already.
  bool remove(waiter& item) noexcept;
  /// Returns the first request, with or without a turn; null if there is none.
  inline waiter* first() const noexcept { return items_.first(); }
  /// Returns the request that follows `item`; null at the end.
  static inline waiter* after(waiter const& item) noexcept { return item.links_.next; }
  /// Returns whether no request is parked.
  inline bool empty() const noexcept { return items_.empty(); }
  /// Counts the parked requests. Time grows with their number.
  waiting_statistics read_statistics() const noexcept;
  /// Returns the bytes that the holders of parked requests hold. Each holder counts once, and only if
  /// `is_counted(holder)` is false. Time grows with the number of parked requests.
  template <class Counted> std::size_t held_by_parked(Counted is_counted) const noexcept {
    std::size_t sum = 0;
    holder const* last = nullptr; // requests of the same holder are neighbours
    for (auto const* at = items_.first(); at; at = at->links_.next) {
      if (at->holder_ && at->holder_ != last && !is_counted(*at->holder_)) sum += at->holder_->held();
      last = at->holder_;
    }
    return sum;
  }
  /// Requests whose holders can free memory for an older request by a rollback; see find_yielding().
  struct yielding {
    waiter* last = nullptr; ///< the last of these requests; null if there is none
    std::size_t held = 0;   ///< bytes that the holders of these requests hold
  };
  /// Returns the requests after `first` that have no turn, and whose holders hold memory and can roll their work back.
  yielding find_yielding(waiter const& first) const noexcept;
  /// Returns the last request whose holder holds memory; null if there is none.
  waiter* last_with_memory() const noexcept;
  /// Returns whether a request of a holder is parked.
  inline bool has_holders() const noexcept { return of_holders_ > 0; }

  /// Returns whether the waiter is parked, with or without a turn.
  static inline bool holds(waiter const& item) noexcept { return item.parked_; }
  /// Returns whether the waiter has a turn.
  static inline bool has_turn(waiter const& item) noexcept { return item.turn_ > 0; }
  /// Returns the time at which the waiter was parked.
  static inline sync::time_point waits_since(waiter const& item) noexcept { return item.parked_since_; }
  /// Returns the first request without a turn; null if there is none.
  inline waiter* next_waiting() const noexcept { return first_waiting_; }
  /// Returns the first request that may get a turn and for which `may(request)` is true; null if there is none.
  template <class May> waiter* next_for_turn(May may) const noexcept {
    if (exclusive_ > 0) return nullptr;
    unsigned passed = 0;
    for (auto* at = first_waiting_; at && passed <= max_overtakes_; at = at->links_.next) {
      if (has_turn(*at)) continue;
      if (may(*at)) return at;
      if (at->overtaken_ >= max_overtakes_) return nullptr;
      ++passed;
    }
    return nullptr;
  }
  /// Gives the waiter a turn, in which `bytes` > 0 are set aside for it. The waiter keeps its place in the list.
  void give_turn(waiter& item, std::size_t bytes) noexcept;
  /// Ends the turn; the waiter waits again. `in_vain`: it got no memory although enough bytes were set aside.
  void end_turn(waiter& item, bool in_vain) noexcept;
  /// Returns the bytes that are set aside for all requests with a turn.
  inline std::size_t set_aside() const noexcept { return set_aside_; }
  /// Returns the bytes for which all requests without a turn ask.
  inline std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }

  /// Returns whether a request that is not parked may overtake all requests without a turn.
  inline bool may_be_overtaken() const noexcept {
    return exclusive_ == 0 && (!first_waiting_ || (max_overtakes_ > 0 && blocked_ == 0));
  }
  /// Counts that the request `by` has overtaken the requests without a turn that go before it. Null: a request that is
  /// not parked has overtaken all requests without a turn.
  void count_overtaking(waiter const* by = nullptr) noexcept;

private:
  static bool goes_first(waiter const& one, waiter const& other) noexcept;
  void add_waiting(waiter& item) noexcept;
  void remove_waiting(waiter& item) noexcept;
  void take_turn_from(waiter& item) noexcept;

  unsigned const max_overtakes_;
  detail::intrusive_list<waiter> items_;
  waiter* first_waiting_ = nullptr;
  std::size_t of_holders_ = 0;
  std::uint64_t turns_ = 0;
  std::size_t exclusive_ = 0;
  std::size_t blocked_ = 0; // requests without a turn that were overtaken `max_overtakes` times
  std::size_t set_aside_ = 0;
  std::size_t waiting_bytes_ = 0;
};

} // namespace gpumem::extend
