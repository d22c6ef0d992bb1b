// The one hook of waiting: a request that a resource may park and decide later.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:waiter;
import :cuda;
import :error;
import :std;
import :stream;

namespace gpumem {

export class waiter;

/// What an adaptor does at the moment of a grant, since counting at the call would count what is never granted.
export class grant_hook {
public:
  virtual void on_grant(stream_key const& stream, void* pointer, std::size_t bytes, std::size_t alignment) noexcept = 0;

protected:
  ~grant_hook() = default;
};

/// A request for memory that waits. A resource's `admit(waiter&)` either returns false, having called settle() or not
/// (then the request is exhausted), or parks it and returns true. A parked waiter is decided exactly once: by the
/// resource, which unlinks it under its lock and then, without the lock, calls grant() or refuse(); or by
/// `withdraw(waiter&)`, after which the resource forgets it. After grant() or refuse() it touches the waiter no more.
///
/// A resource that must not touch the waiter's stream where memory is freed decides in two steps. Under its lock it
/// gives the waiter a turn, which sets bytes aside; without the lock it calls `call()` and touches the waiter no more.
/// The operation calls admit() again where it resumes. That admit() allocates, or parks the waiter again in its old
/// place. While the waiter has its turn withdraw() returns false, unless it is leaving(): then its turn ends.
export class waiter {
public:
  waiter(waiter const&) = delete;
  waiter& operator=(waiter const&) = delete;

  inline stream_key const& stream() const noexcept { return stream_; }
  inline std::size_t bytes() const noexcept { return bytes_; }
  inline std::size_t alignment() const noexcept { return alignment_; }

  /// The answer at once, from inside admit().
  void settle(expected<void*, failure> result) noexcept;

  /// The answer to a parked request; the memory is valid in the order of the waiter's stream once it has resumed.
  void grant(void* pointer) noexcept;
  void refuse(failure const& why) noexcept;

  /// It is the turn of a parked request: the operation calls admit() again where it resumes.
  void call() noexcept { decided(); }
  /// The operation is being destroyed.
  inline bool leaving() const noexcept { return leaving_; }

  /// An adaptor's hook, run at the grant, upstream's first. False if the stack of adaptors is too deep.
  bool add_hook(grant_hook& hook) noexcept;

  /// Whether a stop was requested; a resource asks under its lock before it parks.
  inline bool stop_requested() const noexcept { return stop_requested_.load(std::memory_order_acquire); }

protected:
  waiter(stream_key const& stream, std::size_t bytes, std::size_t alignment) noexcept
      : stream_{stream}, bytes_{bytes}, alignment_{alignment} {}
  ~waiter() = default;

  /// Arranges that the operation resumes; the last thing that happens to a waiter.
  virtual void decided() noexcept = 0;

  void request_stop() noexcept { stop_requested_.store(true, std::memory_order_release); }
  inline bool settled() const noexcept { return settled_; }
  inline bool settled_stopped() const noexcept {
    return settled_ && !result_ && result_.error().what == outcome::stopped;
  }
  expected<void*, failure> take_result() noexcept;
  /// Before admit() is called again: adaptors add their hooks again, and the stream may have begun a capture.
  void renew(stream_key const& stream) noexcept;
  void leave() noexcept { leaving_ = true; }

private:
  friend class waiter_list;
  friend class called_waiters;
  static constexpr std::size_t most_hooks = 8;

  stream_key stream_;
  std::size_t bytes_;
  std::size_t alignment_;
  expected<void*, failure> result_{nullptr};
  std::array<grant_hook*, most_hooks> hooks_{};
  std::size_t hook_count_ = 0;
  std::atomic<bool> stop_requested_{false};
  bool settled_ = false;
  bool leaving_ = false;

  waiter* next_ = nullptr;
  waiter* previous_ = nullptr;
  bool parked_ = false;
  std::size_t turn_ = 0; // bytes set aside for it
  waiter* next_called_ = nullptr;
};

/// Waiters whose turn has come, to be called without the lock of the resource: declare it before the lock is taken.
export class called_waiters {
public:
  called_waiters() = default;
  called_waiters(called_waiters const&) = delete;
  called_waiters& operator=(called_waiters const&) = delete;
  ~called_waiters();
  void add(waiter& item) noexcept;

private:
  waiter* first_ = nullptr;
  waiter** end_ = &first_;
};

/// Parked requests in order of arrival; guarded by the lock of the resource that keeps it.
export class waiter_list {
public:
  /// Parks it; false if a stop was requested meanwhile.
  bool park(waiter& item) noexcept;
  /// Unlinks it; false if it was decided already.
  bool remove(waiter& item) noexcept;
  inline waiter* first() const noexcept { return first_; }
  inline bool empty() const noexcept { return first_ == nullptr; }

  /// Whether it is parked here, with a turn or without.
  static inline bool holds(waiter const& item) noexcept { return item.parked_; }
  static inline bool has_turn(waiter const& item) noexcept { return item.turn_ > 0; }
  /// The oldest that has no turn, or null.
  waiter* next_waiting() const noexcept;
  /// Sets `bytes` aside for the waiter, more than 0. The waiter keeps its place.
  void give_turn(waiter& item, std::size_t bytes) noexcept;
  void end_turn(waiter& item) noexcept;
  /// Bytes set aside for all that have a turn.
  inline std::size_t set_aside() const noexcept { return set_aside_; }

private:
  waiter* first_ = nullptr;
  waiter* last_ = nullptr;
  std::size_t set_aside_ = 0;
};

} // namespace gpumem
