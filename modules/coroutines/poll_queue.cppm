// Poll queues: waits for the GPU that complete in order, since they are for one stream or one event.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:poll_queue;
import :cuda;
import :event;
import :intrusive_list;
import :std;
import :sync;

namespace gpumem {

/// How soon a wait for the GPU is to see the completion, and how much host time it may cost.
export enum class latency {
  /// Polls without a pause: one core while such waits are pending that resume by default, and one core per device while
  /// others are.
  low,
  /// Polls every 10 to 100 µs: about 1/4 of a core in either case, more with waits on many streams.
  balanced,
};

namespace detail {

class poll_queue;
class poll_queue_list;
class reactor;

// A wait for a point of a stream or for an event; a base of the waiting operation. The reactor's lock guards its links.
class pending_wait {
public:
  pending_wait(pending_wait const&) = delete;
  pending_wait& operator=(pending_wait const&) = delete;

protected:
  explicit pending_wait(latency urgency) noexcept : urgency_{urgency} {}
  ~pending_wait() = default;

  // Called once, on the polling thread and without the reactor's lock, with the driver's result for the event, never
  // CUDA_ERROR_NOT_READY. The reactor does not use the wait afterwards.
  virtual void complete(CUresult result) noexcept = 0;

  stream_point where_;
  poll_queue* queue_ = nullptr; // set before add_wait(); constant afterwards
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

// Waits that were removed from their queue and whose complete() is yet to be called.
class completed_waits {
public:
  void push(pending_wait& point, CUresult result) noexcept;
  // Removes and returns the first wait; null if there is none. The wait may be destroyed as soon as it is completed.
  pending_wait* pop() noexcept;
  bool empty() const noexcept { return waits_.empty(); }
  std::size_t size() const noexcept { return size_; }

private:
  intrusive_list<pending_wait> waits_;
  std::size_t size_ = 0;
};

// A query of one queue to the driver: for its oldest event and, if that is complete, for its newest.
struct poll_request {
  poll_queue* of = nullptr;
  CUevent oldest = nullptr;
  CUevent newest = nullptr;
  CUresult oldest_result = CUDA_ERROR_NOT_READY;
  CUresult newest_result = CUDA_ERROR_NOT_READY;
};

// Waits that complete in the order in which they were added, so that one or two queries suffice for any number of them.
// Never destroyed, as the streams' timelines. The reactor's lock guards it.
class poll_queue {
public:
  explicit poll_queue(reactor& home) noexcept : home_{home} {}
  poll_queue(poll_queue const&) = delete;
  poll_queue& operator=(poll_queue const&) = delete;

  reactor& home() const noexcept { return home_; }
  // Held from the record of an event until its wait is added, without the reactor's lock. Otherwise a later event could
  // come before an earlier one, and the earlier one would wait for later work, which may wait for the earlier one.
  sync::mutex mutex;

  void push(pending_wait& point) noexcept;
  // Also allowed during a poll of this wait; its result is then ignored.
  void remove(pending_wait& point) noexcept;
  bool empty() const noexcept { return waits_.empty(); }
  // Whether a wait has latency::low.
  bool urgent() const noexcept { return urgent_waits_ > 0; }

  // Between begin_poll() and end_poll() the reactor queries the driver without its lock.
  poll_request begin_poll() noexcept;
  void end_poll(poll_request const& request, completed_waits& completed) noexcept;
  bool is_polled() const noexcept { return is_polled_; }
  // Moves all waits to `completed`, with this result.
  void fail_all(CUresult result, completed_waits& completed) noexcept;

private:
  friend class poll_queue_list;
  friend class intrusive_list<poll_queue>;
  reactor& home_;
  intrusive_list<pending_wait> waits_;
  std::size_t urgent_waits_ = 0;
  bool is_polled_ = false;
  pending_wait* polled_oldest_ = nullptr; // null if it was removed during the poll
  pending_wait* polled_newest_ = nullptr;
  poll_queue_list* listed_in_ = nullptr;
  list_links<poll_queue> links_;
};

// A list of queues that have waits; the queue polled longest ago comes first. The reactor's lock guards it.
class poll_queue_list {
public:
  // Moves the queue from its list, if any, to the end of another; null: only removes it.
  static void move(poll_queue& item, poll_queue_list* to) noexcept;
  static poll_queue_list* of(poll_queue const& item) noexcept { return item.listed_in_; }
  poll_queue* first() const noexcept { return queues_.first(); }
  bool empty() const noexcept { return queues_.empty(); }
  std::size_t size() const noexcept { return size_; }

private:
  intrusive_list<poll_queue> queues_;
  std::size_t size_ = 0;
};

} // namespace detail
} // namespace gpumem
