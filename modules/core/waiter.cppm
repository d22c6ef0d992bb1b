// A request for memory that may wait: its parts, and the list in which it waits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <utility>
export module gpumem:waiter;
import :cuda;
import :error;
import :holder;
import :intrusive_list;
import :std;
import :stream;
import :sync;

namespace gpumem::detail {

/// Tells what a request lacks, if that changes while the request waits.
export class lack {
public:
  /// Returns the bytes that the request lacks; 0 if it lacks none. Takes no lock.
  virtual std::size_t bytes() const noexcept = 0;

protected:
  ~lack() = default;
};

} // namespace gpumem::detail

namespace gpumem::extend {

/// The request for one block. There are also requests for a turn, which ask for no memory. Such a request waits until
/// the resource has set bytes aside for it.
export struct request_part {
  stream_key stream;       ///< the stream in whose order the memory is valid
  std::size_t bytes;       ///< the requested bytes; 0 in a request for a turn
  std::size_t alignment;   ///< the alignment of the memory, in bytes; a power of two
  void* pointer = nullptr; ///< the memory; set when the part is granted
};

/// The parts of one request, which gets all of them or none. There is one part, unless acquire_all made the request.
export class request_parts {
public:
  request_parts(request_parts const&) = delete;
  request_parts& operator=(request_parts const&) = delete;

  /// Returns the stream of the first part.
  inline stream_key const& stream() const noexcept { return first_.stream; }
  /// Returns the alignment of the first part, in bytes.
  inline std::size_t alignment() const noexcept { return first_.alignment; }
  /// Returns the sum of the bytes of all parts; in a request for a turn, the bytes to set aside.
  inline std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the sum of `round(part)` of all parts that ask for bytes; at most PTRDIFF_MAX.
  template <class Round> std::size_t bytes_by(Round round) const noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < parts(); ++i) {
      if (part(i).bytes > 0) total += std::min<std::size_t>(round(part(i)), PTRDIFF_MAX - total);
    }
    return total;
  }
  /// Returns whether there is more than one part.
  inline bool has_parts() const noexcept { return !more_.empty(); }
  /// Returns the number of parts.
  inline std::size_t parts() const noexcept { return 1 + more_.size(); }
  /// Returns the part number `i`, from 0.
  inline request_part& part(std::size_t i) noexcept { return i == 0 ? first_ : more_[i - 1]; }
  inline request_part const& part(std::size_t i) const noexcept { return i == 0 ? first_ : more_[i - 1]; }
  /// Returns whether this is a request for a turn: it asks for no memory, but waits until bytes() are set aside for it.
  inline bool asks_for_turn() const noexcept { return first_.bytes == 0 && bytes_ > 0 && more_.empty(); }

  /// Allocates all parts or none. A resource calls this in its admit(), which decides a request that may wait.
  /// `allocate(part)` returns expected<void*, failure>; `deallocate(part)` takes a part back. Returns the first part's
  /// pointer, or the failure.
  template <class Allocate, class Deallocate>
  expected<void*, failure> allocate_parts(Allocate allocate, Deallocate deallocate) noexcept {
    for (std::size_t i = 0; i < parts(); ++i) {
      auto& this_part = part(i);
      if (this_part.bytes == 0) continue;
      auto const result = allocate(std::as_const(this_part));
      if (result) {
        this_part.pointer = *result;
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

protected:
  /// `stream`, `bytes` and `alignment` describe the first part, and `more` holds the other parts, which must live as
  /// long as the request. If the sum of the bytes exceeds PTRDIFF_MAX, bytes() is PTRDIFF_MAX, or `bytes` if that is
  /// more.
  request_parts(stream_key const& stream, std::size_t bytes, std::size_t alignment,
                std::span<request_part> more = {}) noexcept;
  ~request_parts() = default;

  /// Makes this a request for a turn.
  void ask_for_turn() noexcept { first_.bytes = 0; }
  /// Sets the bytes of a request that has one part.
  inline void set_bytes(std::size_t bytes) noexcept { first_.bytes = bytes_ = bytes; }

private:
  request_part first_;
  std::span<request_part> more_;
  std::size_t bytes_;
};

export class waiter;

/// Tells an adaptor when a request is granted. An adaptor that counted each call of admit() would count requests that
/// are never granted.
export class grant_hook {
public:
  /// Called for each granted part (one block of the request), in the order of the parts.
  virtual void on_grant(waiter const& item, request_part const& part) noexcept = 0;
  /// Called if the request ends without memory. Not called if the request is withdrawn: the adaptor then gets the call
  /// of cancel_waiter() itself.
  virtual void on_refusal(waiter&) noexcept {}
  /// Returns the place that counts bytes for a request that has passed this adaptor and waits at the upstream. Returns
  /// null if the adaptor counts no such bytes.
  virtual detail::waiting_place* place() noexcept { return nullptr; }

protected:
  ~grant_hook() = default;
};

/// A request for memory that may wait in a resource. The resource's `admit(waiter&)` parks the waiter and returns true;
/// or it calls complete() and returns false; or it only returns false, and the request ends with outcome::exhausted. A
/// parked waiter is decided exactly once. Either the resource unlinks it under its lock and then, without the lock,
/// calls grant() or refuse() and does not touch it again; or cancel_waiter() makes the resource forget it.
///
/// A resource that must not touch the waiter's stream in a call that frees memory decides in two steps. Under its lock
/// it gives the waiter a turn, which sets bytes aside. Without the lock it calls wake() and does not touch the waiter
/// again. The operation (the object derived from waiter that waits for the answer) calls admit() again where it
/// resumes. That admit() allocates, or parks the waiter again in its old place. While the waiter has its turn,
/// cancel_waiter() returns false. If is_being_destroyed(), cancel_waiter() ends the turn instead.
export class waiter : public request_parts {
public:
  /// Requests of a higher priority go first; all requests of a holder have its priority and age.
  inline int priority() const noexcept { return priority_; }
  /// Returns the holder for which the request is made; null if there is none. set_holder() is called before the request
  /// is parked.
  inline class holder* holder() const noexcept { return holder_; }
  /// Sets the holder and takes its priority. Does nothing if the request has a holder already.
  void set_holder(class holder& unit) noexcept;
  /// Makes the resource ask what the request lacks. Called before the request is parked, if it has one part. `source`
  /// must live as long as the request. Its first answer is bytes(), or less.
  inline void set_lack(detail::lack const& source) noexcept { lack_ = &source; }
  /// Returns whether the request lacks no memory, so that it takes none from others.
  inline bool lacks_nothing() const noexcept { return lack_ && lack_->bytes() == 0; }
  /// Returns the key of a part for calls of resources: that of its stream, with the request's holder.
  friend inline stream_key key_of(waiter const& item, request_part const& part) noexcept {
    return item.holder_ ? part.stream.for_unit(*item.holder_) : part.stream;
  }
  /// Returns a number that the resource keeps with the waiter, such as its count of frees at the waiter's last attempt.
  /// It is 0 at first. The resource holds its lock.
  inline std::uint64_t seen_changes() const noexcept { return seen_changes_; }
  /// Sets the number that seen_changes() returns.
  inline void set_seen_changes(std::uint64_t value) noexcept { seen_changes_ = value; }

  /// Answers the request from inside admit(). Called without the resource's lock, since it runs the hooks of adaptors,
  /// and these can call other resources.
  void complete(expected<void*, failure> result) noexcept;

  /// Answers a parked request. The memory is valid in the order of the waiter's stream once the operation has resumed.
  void grant(void* pointer) noexcept;
  /// Ends a parked request without memory.
  void refuse(failure const& failure) noexcept;

  /// Tells a parked request that it has a turn: the operation calls admit() again where it resumes.
  void wake() noexcept { on_complete(); }
  /// Returns whether the operation ends without asking again. If it does, cancel_waiter() also ends its turn.
  inline bool is_being_destroyed() const noexcept { return being_destroyed_; }

  /// Adds an adaptor's hook, which runs when the request is granted or refused. The hooks of the adaptor's upstreams
  /// run first. Called in each admit() of the adaptor, by the thread that calls it; a second call in the same admit()
  /// changes nothing. The hooks of eight adaptors lie in the waiter; further ones are allocated. Returns false, and
  /// adds nothing, if the host has no memory: the adaptor then refuses the request.
  bool add_hook(grant_hook& hook) noexcept;

  /// Returns whether the request has passed the adaptor whose hook is `hook`. That adaptor has let it go on to the
  /// upstream, and also passes each repeated call of admit() on. The request then waits only in the upstream. An
  /// adaptor with a queue calls this, mark_passed() and clear_passed() under the lock of the queue.
  bool has_passed(grant_hook const& hook) const noexcept;
  /// Notes that the request has passed the adaptor, which has added its hook before.
  void mark_passed(grant_hook const& hook) noexcept;
  /// Takes mark_passed() back. Returns false if the request has not passed the adaptor.
  bool clear_passed(grant_hook const& hook) noexcept;

  /// Calls `f(hook)` for the hook of each adaptor that the request has passed. The caller holds the lock of the
  /// resource in which the request waits.
  template <class F> void visit_passed(F f) const noexcept {
    for (auto* at = first_passage_.load(std::memory_order_acquire); at; at = at->next.load(std::memory_order_acquire)) {
      if (at->passed.load(std::memory_order_relaxed)) f(*at->hook);
    }
  }

  /// Returns whether a stop or the deadline has cancelled the request. A resource calls this under its lock before it
  /// parks the waiter. If the request was cancelled, the resource answers with refusal() instead.
  inline bool cancelled() const noexcept { return refusal() != outcome::exhausted; }
  /// Returns the outcome of a request that gets no memory and does not wait: outcome::stopped or outcome::deadline,
  /// whichever cancelled it first; otherwise outcome::exhausted.
  inline outcome refusal() const noexcept { return refusal_.load(std::memory_order_acquire); }

protected:
  /// Makes a waiter whose first part has this `stream`, `bytes` and `alignment`. `more` holds its other parts and must
  /// live as long as the waiter.
  waiter(stream_key const& stream, std::size_t bytes, std::size_t alignment, int priority = 0,
         std::span<request_part> more = {}) noexcept
      : request_parts{stream, bytes, alignment, more}, priority_{priority} {}
  ~waiter();

  /// Makes the operation resume. The caller must not touch the waiter afterwards.
  virtual void on_complete() noexcept = 0;

  /// Cancels the request for the reason `reason`. Returns false if it was cancelled before: the first reason counts.
  bool set_cancelled(outcome reason) noexcept {
    auto before = outcome::exhausted;
    return refusal_.compare_exchange_strong(before, reason, std::memory_order_acq_rel);
  }
  inline bool is_complete() const noexcept { return complete_; }
  inline bool was_stopped() const noexcept {
    return complete_ && !result_ && result_.error().reason == outcome::stopped;
  }
  expected<void*, failure> take_result() noexcept;
  /// Called before a repeated call of admit(), in which the adaptors add their hooks again.
  void clear_hooks() noexcept;
  void set_being_destroyed() noexcept { being_destroyed_ = true; }

private:
  friend class waiter_list;
  friend class woken_waiters;
  friend class ended_waiters;
  friend class detail::intrusive_list<waiter>;

  // A request keeps one passage for each adaptor, from the first call of add_hook() until the request ends.
  struct passage {
    grant_hook* hook;
    passage* outer = nullptr; // of the hook that was added before this one
    bool added = false;       // the hook runs at the end of the request
    std::atomic<bool> passed{false};
    std::atomic<passage*> next{nullptr};
  };
  static constexpr std::size_t places = 8;
  passage* find(grant_hook const& hook) const noexcept;
  passage* make_passage(grant_hook& hook) noexcept;

  class holder* holder_ = nullptr;
  detail::lack const* lack_ = nullptr;
  int priority_;
  unsigned overtaken_ = 0; // times that it was overtaken since it was parked
  std::uint64_t seen_changes_ = 0;
  expected<void*, failure> result_{nullptr};
  // The passages: the first ones lie in `storage_`, which is not initialized before. Another thread may read them, to
  // cancel the request, while an admit() adds one.
  std::atomic<passage*> first_passage_{nullptr};
  passage* last_passage_ = nullptr;
  std::size_t passages_ = 0;
  passage* innermost_ = nullptr; // of the hook that was added last
  alignas(passage) std::array<std::byte, places * sizeof(passage)> storage_;

  std::atomic<outcome> refusal_{outcome::exhausted};
  bool complete_ = false;
  bool being_destroyed_ = false;

  detail::list_links<waiter> links_;
  bool parked_ = false;
  std::uint64_t age_ = 0;          // that of the holder; without a holder, set when the waiter is parked
  std::uint64_t turns_before_ = 0; // the list's count of all turns when this waiter got its turn
  bool was_refused_ = false;       // it got no memory in its turn, although there were bytes enough
  bool exclusive_ = false;         // no other request gets a turn while this one has its turn
  sync::time_point parked_since_;
  std::size_t turn_ = 0; // bytes set aside for it; 0: it has no turn
  waiter* next_woken_ = nullptr;
  std::uint64_t number_ = 0; // counts the calls of park(); of two waiters of equal rank, the lower number goes first
  waiter* before_ = nullptr; // in the list's tree: the subtrees of those that go first, and of those that go later
  waiter* behind_ = nullptr;
};

/// Waiters that got a turn. The destructor wakes them, without the lock of the resource: so declare this object before
/// the lock.
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

/// Waiters that a resource has unlinked because they end without memory. The destructor refuses them, without a lock:
/// so declare this object before the locks.
export class ended_waiters {
public:
  /// Each waiter ends with this outcome.
  explicit ended_waiters(outcome reason) noexcept : reason_{reason} {}
  ended_waiters(ended_waiters const&) = delete;
  ended_waiters& operator=(ended_waiters const&) = delete;
  ~ended_waiters();
  /// Adds a waiter.
  void add(waiter& item) noexcept;
  /// Returns whether no waiter was added.
  inline bool empty() const noexcept { return first_ == nullptr; }

private:
  outcome const reason_;
  waiter* first_ = nullptr;
  waiter** end_ = &first_;
};

/// Statistics of the requests that are parked in a waiter_list.
export struct waiting_statistics {
  std::uint64_t requests = 0; ///< number of parked requests
  std::size_t bytes = 0;      ///< bytes for which they ask
  sync::duration oldest{};    ///< how long the oldest request has waited
};

/// Parked requests by priority, and within one priority in order of arrival; guarded by the lock of the resource that
/// keeps them. A request of a holder counts as having arrived when the holder was made, so that older work goes first.
/// A turn (see waiter) goes to the first request without one. If there is no memory for that request, one of the next
/// `max_overtakes` requests may overtake it, if it needs less. It may do so only while no request before it has been
/// overtaken `max_overtakes` times. A request that has a turn cannot be overtaken, since its bytes are set aside. If a
/// request is refused in its turn nevertheless, all requests that got a turn meanwhile count as having overtaken it.
/// Once a request that was refused so has been overtaken `max_overtakes` times, no other request gets a turn while it
/// has one.
export class waiter_list {
public:
  /// Makes an empty list. If `max_overtakes` is 0, no request may overtake another.
  explicit waiter_list(unsigned max_overtakes = 0) noexcept : max_overtakes_{max_overtakes} {}

  /// Parks the waiter. Returns false if it was cancelled. Time grows with the logarithm of the number of parked
  /// requests, in whatever order these arrive.
  bool park(waiter& item) noexcept;
  /// Unlinks the waiter. Returns false if it is not parked, since it was decided already.
  bool remove(waiter& item) noexcept;
  /// Returns the first request, with or without a turn; null if there is none.
  inline waiter* first() const noexcept { return items_.first(); }
  /// Returns the request after `item`; null if there is none.
  static inline waiter* after(waiter const& item) noexcept { return item.links_.next; }
  /// Returns how many pairs of requests all calls of park() and remove() have compared.
  inline std::uint64_t comparisons() const noexcept { return comparisons_; }
  /// Returns whether no request is parked.
  inline bool empty() const noexcept { return items_.empty(); }
  /// Returns the statistics. Time grows with the number of parked requests.
  waiting_statistics read_statistics() const noexcept;
  /// Asks a parked request without a turn what it lacks now.
  void update(waiter& item) noexcept;
  /// Returns whether a request is parked that update() may change.
  inline bool has_lacks() const noexcept { return lacks_ > 0; }
  /// Returns whether a request of a holder is parked.
  inline bool has_holders() const noexcept { return of_holders_ > 0; }

  /// Returns whether the waiter is parked, with or without a turn.
  static inline bool holds(waiter const& item) noexcept { return item.parked_; }
  /// Returns whether the waiter has a turn.
  static inline bool has_turn(waiter const& item) noexcept { return item.turn_ > 0; }
  /// Returns the bytes that are set aside for the waiter; 0 if it has no turn.
  static inline std::size_t bytes_aside(waiter const& item) noexcept { return item.turn_; }
  /// Returns the age of the waiter, which is parked: that of its holder, or a later number if it has none.
  static inline std::uint64_t age_of(waiter const& item) noexcept { return item.age_; }
  /// Returns whether `item` goes before `other` because of its priority and age.
  static bool goes_first(waiter const& item, waiter const& other) noexcept;
  /// Returns a number that grows with each change of the list and of turns.
  inline std::uint64_t changes() const noexcept { return changes_; }
  /// Returns the time at which the waiter was parked.
  static inline sync::time_point waits_since(waiter const& item) noexcept { return item.parked_since_; }
  /// Returns the first request without a turn; null if there is none.
  inline waiter* next_waiting() const noexcept { return first_waiting_; }
  /// Returns the first request without a turn to which a turn can go now and for which `may` returns true. Returns null
  /// if there is none.
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
  /// Sets `bytes` > 0 aside for the waiter. The waiter keeps its place.
  void give_turn(waiter& item, std::size_t bytes) noexcept;
  /// Makes the waiter wait again. `in_vain`: it got no memory in its turn, although there were bytes enough.
  void end_turn(waiter& item, bool in_vain) noexcept;
  /// Returns the bytes that are set aside for all requests with a turn.
  inline std::size_t set_aside() const noexcept { return set_aside_; }
  /// Returns the bytes for which all requests without a turn ask.
  inline std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }

  /// Returns whether a request that is not parked may overtake all parked requests without a turn.
  inline bool may_be_overtaken() const noexcept {
    return exclusive_ == 0 && (!first_waiting_ || (max_overtakes_ > 0 && blocked_ == 0));
  }
  /// Notes that `overtaker` has overtaken each request that has no turn and stands before it in the list. Null: a
  /// request that is not parked has overtaken all requests without a turn.
  void count_overtaking(waiter const* overtaker = nullptr) noexcept;

private:
  static std::uint64_t height(waiter const& item) noexcept;
  waiter* insert_into_tree(waiter& item) noexcept;
  void remove_from_tree(waiter& item) noexcept;
  void add_waiting(waiter& item) noexcept;
  void remove_waiting(waiter& item) noexcept;
  void take_turn_from(waiter& item) noexcept;

  unsigned const max_overtakes_;
  detail::intrusive_list<waiter> items_;
  waiter* root_ = nullptr; // of a tree of all items, by which park() finds a place in `items_`
  std::uint64_t parks_ = 0;
  std::uint64_t comparisons_ = 0;
  waiter* first_waiting_ = nullptr;
  std::size_t of_holders_ = 0;
  std::size_t lacks_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t turns_ = 0;
  std::size_t exclusive_ = 0;
  std::size_t blocked_ = 0; // requests without a turn that have been overtaken max_overtakes_ times
  std::size_t set_aside_ = 0;
  std::size_t waiting_bytes_ = 0;
};

} // namespace gpumem::extend
