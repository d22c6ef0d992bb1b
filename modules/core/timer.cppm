// Timers: functions that the library thread runs at a given time.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:timer;
import :std;
import :sync;

namespace gpumem::detail {

export class timer;
export class timer_heap;
export void start_timer(timer& item, sync::time_point when);
export void cancel_timer(timer& item) noexcept;
export bool try_cancel_timer(timer& item) noexcept;

/// One function call to run at a given time. It lies inside the operation that waits, so that starting it allocates
/// nothing.
class timer {
public:
  timer() = default;
  timer(timer const&) = delete;
  timer& operator=(timer const&) = delete;

  /// Called on the library thread, or on the executor_thread that started it, without a lock, at the given time or
  /// later. That thread does not touch the timer afterwards.
  virtual void expire() noexcept = 0;

protected:
  ~timer() = default;

private:
  friend class timer_heap;
  friend void start_timer(timer& item, sync::time_point when);
  friend void cancel_timer(timer& item) noexcept;

  sync::time_point when_{};
  std::uint64_t number_ = 0; // in order of start
  timer* child_ = nullptr;
  timer* next_ = nullptr;     // the next child of the same parent
  timer* previous_ = nullptr; // the previous child of the same parent; for the first child, the parent
  bool waits_ = false;        // in a heap
  bool started_ = false;      // and not cancelled since; only the owner uses it
};

/// Timers by time, those of the same time in order of start. Not thread-safe: the caller holds a lock. A pairing heap:
/// Fredman, Sedgewick, Sleator, Tarjan, "The pairing heap: a new form of self-adjusting heap" (1986). Insertion takes
/// constant time, removal O(log n) amortized. Neither allocates.
export class timer_heap {
public:
  /// The timer must be in no heap.
  void insert(timer& item, sync::time_point when) noexcept;
  /// False if the timer is not in the heap.
  bool remove(timer& item) noexcept;
  /// Returns the earliest timer; null if there is none.
  timer* first() const noexcept { return root_; }
  static sync::time_point moment_of(timer const& item) noexcept { return item.when_; }

private:
  static bool before(timer const& a, timer const& b) noexcept;
  static timer* merge(timer* a, timer* b) noexcept;
  static timer* merge_all(timer* first) noexcept;

  timer* root_ = nullptr;
  std::uint64_t started_ = 0;
};

/// Runs the timer on the library thread at `when`, or soon if that has passed. The timer must not wait already, and no
/// other thread may start it meanwhile; its own expire() may start it again. Throws as default_executor(). Any thread.
void start_timer(timer& item, sync::time_point when);

void cancel_started(timer& item) noexcept;

/// After it returns the timer does not run and will not run. Like the destructor of std::stop_callback it waits for an
/// expire() in progress, unless the library thread itself calls it. The caller must not hold a lock that expire()
/// takes.
inline void cancel_timer(timer& item) noexcept {
  if (!item.started_) return;
  item.started_ = false;
  cancel_started(item);
}

/// Cancels a timer that was started; false if its expire() has begun, for which it does not wait. Any thread.
bool try_cancel_timer(timer& item) noexcept;

} // namespace gpumem::detail
