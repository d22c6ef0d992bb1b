// Timers: what the library thread runs at a moment.
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

/// One thing to run at a moment, in place in the operation that waits: starting it allocates nothing.
class timer {
public:
  timer() = default;
  timer(timer const&) = delete;
  timer& operator=(timer const&) = delete;

  /// On the library thread, without a lock, at the moment or later. The library thread then does not touch it again.
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
  timer* next_ = nullptr;     // of the same parent
  timer* previous_ = nullptr; // the parent, of its first child
  bool waits_ = false;        // in a heap
  bool started_ = false;      // and not cancelled since; the owner's alone
};

/// Timers by moment, those of one moment in order of start; the caller guards it. A pairing heap: Fredman, Sedgewick,
/// Sleator, Tarjan, "The pairing heap: a new form of self-adjusting heap" (1986). Insertion takes constant time,
/// removal O(log n) amortized. Neither allocates.
export class timer_heap {
public:
  /// One that is in no heap.
  void insert(timer& item, sync::time_point when) noexcept;
  /// False if it is not in the heap.
  bool remove(timer& item) noexcept;
  /// The earliest, or null.
  timer* first() const noexcept { return root_; }
  static sync::time_point moment_of(timer const& item) noexcept { return item.when_; }

private:
  static bool before(timer const& a, timer const& b) noexcept;
  static timer* merge(timer* a, timer* b) noexcept;
  static timer* merge_all(timer* first) noexcept;

  timer* root_ = nullptr;
  std::uint64_t started_ = 0;
};

/// Runs the timer on the library thread at the moment, or soon if it has passed. The timer neither waits nor is being
/// started elsewhere; its own expire() may start it again. Throws as default_executor() does. Any thread.
void start_timer(timer& item, sync::time_point when);

void cancel_started(timer& item) noexcept;

/// When it returns the timer does not run and will not, as after the destructor of std::stop_callback: it waits for an
/// expire() that runs on the library thread, unless that thread calls it. No lock may be held that expire() takes.
inline void cancel_timer(timer& item) noexcept {
  if (!item.started_) return;
  item.started_ = false;
  cancel_started(item);
}

/// Takes back a timer that was started; false if its expire() has begun, which is not waited for. Any thread.
bool try_cancel_timer(timer& item) noexcept;

} // namespace gpumem::detail
