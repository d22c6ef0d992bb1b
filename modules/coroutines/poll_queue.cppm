// Poll queues. Each holds waits for the GPU, all for one stream or all for one event, so they complete in order.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:poll_queue;
import :cuda;
import :event;
import :intrusive_list;
import :std;
import :sync;

namespace gpumem {

/// Preference of a wait for the GPU: an early resumption, or little processor time for polling.
export enum class latency {
  /// Polls without a pause. While such waits are pending, the thread that polls for them keeps one core busy. One
  /// thread polls for all waits that resume on default_executor(). For waits that resume on other executors, one thread
  /// per device polls.
  low,
  /// Polls every 10 to 100 µs. Each core that `low` would use is busy for about 1/4 of the time, or more with waits on
  /// many streams.
  balanced,
};

namespace detail {

class poll_queue;
class poll_queue_list;
class reactor;

// Base class of an operation that waits for a point of a stream or for an event. The lock of the reactor, which polls
// the driver, guards the private members.
class pending_wait {
public:
  pending_wait(pending_wait const&) = delete;
  pending_wait& operator=(pending_wait const&) = delete;

protected:
  explicit pending_wait(latency urgency) noexcept : urgency_{urgency} {}
  ~pending_wait() = default;

  // Ends the wait. The reactor calls this once, on the polling thread and without the reactor's lock, and does not use
  // the wait afterwards. `result`: the driver's result of a query of the wait's event, never CUDA_ERROR_NOT_READY.
  virtual void complete(CUresult result) noexcept = 0;

  stream_point where_;
  poll_queue* queue_ = nullptr; // set before reactor::add_wait(); constant afterwards
  std::atomic<bool> stop_requested_{false};

private:
  friend class poll_queue;
  friend class completed_waits;
  friend class intrusive_list<pending_wait>;
  friend class reactor;
  latency urgency_;
  bool armed_ = false;
  CUresult result_ = CUDA_ERROR_NOT_READY;
  list_links<pending_wait> links_; // in a poll_queue, later in completed_waits
};

// Waits that were removed from their queue, and whose complete() has not been called yet.
class completed_waits {
public:
  void push(pending_wait& point, CUresult result) noexcept;
  // Removes and returns the first wait; null if there is none. The wait can be destroyed as soon as its complete() is
  // called.
  pending_wait* pop() noexcept;
  bool empty() const noexcept { return waits_.empty(); }
  std::size_t size() const noexcept { return size_; }

private:
  intrusive_list<pending_wait> waits_;
  std::size_t size_ = 0;
};

// One poll of a queue: the driver is asked for the oldest event and, if that is complete, for the newest one.
struct poll_request {
  poll_queue* of = nullptr;
  CUevent oldest = nullptr;
  CUevent newest = nullptr;
  CUresult oldest_result = CUDA_ERROR_NOT_READY;
  CUresult newest_result = CUDA_ERROR_NOT_READY;
};

// Waits that complete in the order in which they were added, so that one or two queries suffice for any number of them.
// Poll queues are never destroyed. The reactor's lock guards them.
class poll_queue {
public:
  explicit poll_queue(reactor& home) noexcept : home_{home} {}
  poll_queue(poll_queue const&) = delete;
  poll_queue& operator=(poll_queue const&) = delete;

  reactor& home() const noexcept { return home_; }
  // A thread locks this mutex before it records an event, and unlocks it when the event's wait is in the queue.
  // Otherwise two threads could add their waits in another order than they recorded their events. The queue would then
  // end the wait for the earlier event only after the later event. But work before the later event can depend on the
  // end of that wait. Then neither would ever end.
  sync::mutex mutex;

  void push(pending_wait& point) noexcept;
  // Removes a wait, also while the driver is being asked for it. The wait then does not get the result of that query.
  void remove(pending_wait& point) noexcept;
  bool empty() const noexcept { return waits_.empty(); }
  // Returns whether a wait in the queue has latency::low.
  bool urgent() const noexcept { return urgent_waits_ > 0; }

  // begin_poll() returns the events to query. The reactor queries the driver without its lock, and stores the results
  // in the poll_request. end_poll() then moves waits to `completed`: those that end by these results. Returns whether
  // there are any.
  poll_request begin_poll() noexcept;
  bool end_poll(poll_request const& request, completed_waits& completed) noexcept;
  // Moves all waits to `completed` with this result.
  void fail_all(CUresult result, completed_waits& completed) noexcept;

private:
  friend class poll_queue_list;
  friend class intrusive_list<poll_queue>;
  reactor& home_;
  intrusive_list<pending_wait> waits_;
  std::size_t urgent_waits_ = 0;
  pending_wait* polled_oldest_ = nullptr; // null if it was removed during the poll
  pending_wait* polled_newest_ = nullptr;
  poll_queue_list* listed_in_ = nullptr;
  list_links<poll_queue> links_;
};

// A list of queues that have waits. A queue whose oldest wait began earlier comes first. The reactor's lock guards the
// list.
class poll_queue_list {
public:
  // Removes the queue from its list, if it is in one. Appends it to `to`, if that is not null.
  static void move(poll_queue& item, poll_queue_list* to) noexcept;
  static poll_queue_list* of(poll_queue const& item) noexcept { return item.listed_in_; }
  poll_queue* first() const noexcept { return queues_.first(); }
  static poll_queue* after(poll_queue const& item) noexcept { return item.links_.next; }
  // Returns the queues of the list in turn, one per call. The list is not empty.
  poll_queue& next_in_turn() noexcept;
  bool empty() const noexcept { return queues_.empty(); }
  std::size_t size() const noexcept { return size_; }

  // How many queues a poll visits in turn, beside those with the oldest waits. note_in_turn() doubles the number if
  // waits of such queues were complete, up to all queues, and halves it otherwise, down to 1/8 of them.
  std::size_t in_turn() const noexcept { return std::min(std::max(in_turn_, (size_ + 7) / 8), size_); }
  void note_in_turn(bool complete) noexcept { in_turn_ = complete ? 2 * in_turn() : in_turn() / 2; }

private:
  intrusive_list<poll_queue> queues_;
  poll_queue* next_ = nullptr; // the queue whose turn is next; null: the first one
  std::size_t size_ = 0;
  std::size_t in_turn_ = 0;
};

} // namespace detail
} // namespace gpumem
