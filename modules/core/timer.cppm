// Timers: functions that the library thread runs at a given time.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timer;
import :std;
import :sync;

namespace gpumem::detail {

export class timer;
export class timer_heap;
export void start_timer(timer& item, sync::time_point deadline);
export void cancel_timer(timer& item) noexcept;
export bool try_cancel_timer(timer& item) noexcept;

/// One function call at a given time. It is a part of the waiting operation, so that starting it allocates nothing.
class timer {
public:
  timer() = default;
  timer(timer const&) = delete;
  timer& operator=(timer const&) = delete;

  /// Called at the given time or later, without a lock. start_timer() makes the library thread call it; start() of an
  /// executor_thread makes that thread call it. The thread does not touch the timer afterwards.
  virtual void expire() noexcept = 0;

protected:
  ~timer() = default;

private:
  friend class timer_heap;
  friend void start_timer(timer& item, sync::time_point deadline);
  friend void cancel_timer(timer& item) noexcept;

  sync::time_point deadline_{};
  std::uint64_t number_ = 0; // in the order of start
  timer* child_ = nullptr;
  timer* next_ = nullptr;     // the next child of the same parent
  timer* previous_ = nullptr; // the previous child of the same parent; for the first child, the parent
  bool waits_ = false;        // whether the timer is in a heap
  bool started_ = false;      // whether it was started and not cancelled since; only the owner uses this
};

/// Timers by time, and timers of the same time in the order of start. Not thread-safe: the caller holds a lock. A
/// pairing heap: Fredman, Sedgewick, Sleator, Tarjan, "The pairing heap: a new form of self-adjusting heap" (1986).
/// Insertion takes constant time, removal O(log n) amortized. Neither allocates.
export class timer_heap {
public:
  /// Adds a timer, which must be in no heap.
  void insert(timer& item, sync::time_point deadline) noexcept;
  /// Removes the timer. Returns false if it is not in the heap.
  bool remove(timer& item) noexcept;
  /// Returns the earliest timer; null if there is none.
  timer* first() const noexcept { return root_; }
  static sync::time_point moment_of(timer const& item) noexcept { return item.deadline_; }

private:
  static bool before(timer const& a, timer const& b) noexcept;
  static timer* merge(timer* a, timer* b) noexcept;
  static timer* merge_all(timer* first) noexcept;

  timer* root_ = nullptr;
  std::uint64_t started_ = 0;
};

/// Runs the timer on the library thread at `deadline`, or soon if that has passed. The timer must not be started
/// already. No other thread may start it at the same time; its own expire() may start it again. Throws
/// std::system_error or std::bad_alloc if the library thread cannot be started, cuda_error in a forked child. Any
/// thread.
void start_timer(timer& item, sync::time_point deadline);

void cancel_started(timer& item) noexcept;

/// Cancels the timer: after this returns, it does not run and will not run. Waits for an expire() in progress, as the
/// destructor of std::stop_callback does, unless the library thread itself calls this. The caller must not hold a lock
/// that expire() takes.
inline void cancel_timer(timer& item) noexcept {
  if (!item.started_) return;
  item.started_ = false;
  cancel_started(item);
}

/// Cancels a timer that was started. Returns false, without a wait, if its expire() has begun. Any thread.
bool try_cancel_timer(timer& item) noexcept;

} // namespace gpumem::detail
