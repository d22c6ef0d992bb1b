// The reactors, which poll the driver for waits, and the poll queue, which keeps waits in order.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <unordered_map>
export module gpumem:reactor;
import :cuda;
import :device;
import :event;
import :executor;
import :intrusive_list;
import :std;
import :stream_timeline;
import :sync;
import :timer;

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

  stream_point point_;
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
  // Removes the queue from its list, if it is in one. Appends it to `list`, if that is not null.
  static void move(poll_queue& item, poll_queue_list* list) noexcept;
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

namespace gpumem::detail {

// Polls the driver for pending waits. A poll queue holds the waits for one stream or event, in their order. The reactor
// queries the oldest event of every queue. It notes completions in the timelines, where pools read them. Queues with a
// wait of latency::low are polled without a pause, which uses one core. All other queues are polled at intervals of 10
// to 100 us. That uses about a quarter of a core, or more if one poll takes over 25 us. If many waits are pending, a
// poll asks for the oldest ones and for some others in turn, since each question can wait for a thread that launches
// work. Without pending waits the reactor does nothing.
//
// A device has two reactors. One runs on the library thread. It polls for waits that resume on this thread, so that no
// other thread has to be woken for them. Between two rounds of polling the library thread runs all work items that are
// queued. The other reactor has a thread of its own and polls for all other waits. A reactor is a `timer`: its thread
// calls expire(), and each call is one polling round. Reactors are never destroyed. The threads that belong to them
// start at first use and end before the driver shuts down. Any thread.
class reactor final : private timer {
public:
  enum class answer {
    armed,   // the reactor will call complete(), unless the wait is removed before
    stopped, // a stop was requested before the call
    ended,   // the process is exiting
  };

  reactor(gpumem::device device, executor_thread& home) noexcept : device_{device}, home_{home} {}
  reactor(reactor const&) = delete;
  reactor& operator=(reactor const&) = delete;

  // Returns the reactor for waits that resume on this executor; makes it at first use. Throws std::bad_alloc,
  // std::system_error if no thread can be started, and cuda_error if the process is exiting.
  static reactor& of(gpumem::device device, executor const& resumes);
  // Returns the number of polling rounds of the device's two reactors so far.
  static std::uint64_t rounds_of(gpumem::device device) noexcept;

  // Returns the poll queue of a stream or of a user's event; makes it at first use. Throws std::bad_alloc.
  poll_queue& queue_of(stream_timeline const& timeline);
  poll_queue& queue_of(CUevent event);

  // Adds the wait to its queue. If the answer is `armed`, the wait can be completed and destroyed before this returns.
  answer add_wait(pending_wait& point) noexcept GPUMEM_REQUIRES(point.queue_->mutex);
  // Returns true if it removed the wait; complete() will then not be called. Returns false if complete() was called, is
  // about to be called, or if the wait was never added.
  bool remove_wait(pending_wait& point) noexcept;

private:
  static constexpr std::size_t batch_size = 32;

  static void stop_all() noexcept;
  void expire() noexcept override;
  void round(sync::time_point begin) GPUMEM_REQUIRES(mutex_);
  void set_due(sync::time_point end, sync::duration busy, sync::duration quiet) noexcept GPUMEM_REQUIRES(mutex_);
  // The queues of which a poll has asked the driver, and how many of them had complete waits.
  struct answers {
    std::size_t asked = 0, complete = 0;
    void add(answers const& more) noexcept { asked += more.asked, complete += more.complete; }
  };
  answers poll(poll_queue_list& queues) GPUMEM_REQUIRES(mutex_);
  answers ask(std::span<poll_request> batch, std::size_t max_misses) GPUMEM_REQUIRES(mutex_);
  void deliver(completed_waits& completed) noexcept GPUMEM_REQUIRES(mutex_);
  void fail_all_lost() GPUMEM_REQUIRES(mutex_);
  void schedule(sync::time_point deadline) noexcept GPUMEM_REQUIRES(mutex_);
  void enlist(poll_queue& item) noexcept GPUMEM_REQUIRES(mutex_);

  gpumem::device const device_;
  executor_thread& home_;
  std::atomic<std::uint64_t> rounds_{0};

  sync::spin_mutex mutex_;
  std::unordered_map<stream_timeline const*, poll_queue> stream_queues_ GPUMEM_GUARDED_BY(mutex_);
  std::unordered_map<CUevent, poll_queue> event_queues_ GPUMEM_GUARDED_BY(mutex_);
  poll_queue_list low_latency_ GPUMEM_GUARDED_BY(mutex_);
  poll_queue_list balanced_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t armed_ GPUMEM_GUARDED_BY(mutex_) = 0;
  // When the next round begins. It is time_point::min() during a round, and time_point::max() while no wait is pending.
  sync::time_point next_ GPUMEM_GUARDED_BY(mutex_) = sync::time_point::max();
  sync::time_point quiet_since_ GPUMEM_GUARDED_BY(mutex_){}; // when a wait was last completed or added
  sync::duration lasted_ GPUMEM_GUARDED_BY(mutex_){};        // how long it had been quiet at the last completion
  sync::time_point due_ GPUMEM_GUARDED_BY(mutex_){};         // when the queues in balanced_ are polled next
  sync::time_point fair_ GPUMEM_GUARDED_BY(mutex_){};        // due_ is at least this, however many waits are added
  // A new wait has a first pause of 10 to 50 us before it is polled. soon_ and added_ describe the waits that were
  // added since the last poll of balanced_ began. soon_ is the earliest end of their first pauses, and added_ is their
  // number.
  sync::time_point soon_ GPUMEM_GUARDED_BY(mutex_) = sync::time_point::max();
  std::size_t added_ GPUMEM_GUARDED_BY(mutex_) = 0;
  bool stopping_ GPUMEM_GUARDED_BY(mutex_) = false;
};

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
/// Returns the number of polling rounds of the device's reactors in this process; it does not grow while no wait for
/// the device is pending. Any thread.
export std::uint64_t completion_rounds(device device) noexcept;

} // namespace detail

} // namespace gpumem
