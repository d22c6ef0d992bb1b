// What is waited for in one order: the points of one stream, or those of one event.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:poll_queue;
import :cuda;
import :event;
import :std;
import :sync;

namespace gpumem {

/// How soon a wait for the GPU is to end, and what it may cost the host meanwhile.
export enum class latency {
  low,      ///< the device is asked without a pause: one core while such a wait is armed
  balanced, ///< it is asked every ten microseconds or so, less often in a long wait: a quarter of a core at most
};

namespace detail {

class poll_queue;
class poll_queue_list;
class reactor;

// A point that somebody waits for; in place in the waiting operation. Its links are guarded by the reactor's lock.
class pending_wait {
public:
  pending_wait(pending_wait const&) = delete;
  pending_wait& operator=(pending_wait const&) = delete;

protected:
  explicit pending_wait(latency urgency) noexcept : urgency_{urgency} {}
  ~pending_wait() = default;

  // Once, on the reactor's thread and without its lock: what the driver said of the event, never "not ready". The last
  // touch.
  virtual void complete(CUresult result) noexcept = 0;

  stream_point where_;
  poll_queue* queue_ = nullptr; // set before it is armed, and stays
  std::atomic<bool> stop_requested_{false};

private:
  friend class poll_queue;
  friend class completed_waits;
  friend class reactor;
  latency urgency_;
  bool armed_ = false;
  CUresult result_ = CUDA_ERROR_NOT_READY;
  pending_wait* next_ = nullptr;
  pending_wait* previous_ = nullptr;
};

// Points that are armed no more, on the way to being told.
class completed_waits {
public:
  void push(pending_wait& point, CUresult result) noexcept;
  // What is told may be gone at once, so nothing is kept of it.
  pending_wait* pop() noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  std::size_t size() const noexcept { return size_; }

private:
  pending_wait* first_ = nullptr;
  pending_wait* last_ = nullptr;
  std::size_t size_ = 0;
};

// What the driver is asked of a queue: its oldest event and, if that is complete, its newest.
struct poll_request {
  poll_queue* of = nullptr;
  CUevent oldest = nullptr;
  CUevent newest = nullptr;
  CUresult oldest_result = CUDA_ERROR_NOT_READY;
  CUresult newest_result = CUDA_ERROR_NOT_READY;
};

// Points that complete in the order in which they were armed, so that however many wait, one or two are asked about.
// Never destroyed, like the streams and the events it is made for. Under the reactor's lock.
class poll_queue {
public:
  explicit poll_queue(reactor& home) noexcept : home_{home} {}
  poll_queue(poll_queue const&) = delete;
  poll_queue& operator=(poll_queue const&) = delete;

  reactor& home() const noexcept { return home_; }
  // Held, without the reactor's lock, from the record of an event until it is armed: else a later event could stand
  // before an earlier one, which would then wait for work that may wait for it.
  sync::mutex& mutex() noexcept { return mutex_; }

  void push(pending_wait& point) noexcept;
  // While it is being asked about as well: the answer is then nobody's.
  void remove(pending_wait& point) noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  // Somebody wants low latency.
  bool urgent() const noexcept { return urgent_waits_ > 0; }

  // Between these two the question is open, and the reactor holds no lock.
  poll_request begin_poll() noexcept;
  void end_poll(poll_request const& request, completed_waits& completed) noexcept;
  bool is_polled() const noexcept { return is_polled_; }
  // Everybody, whatever they wait for.
  void fail_all(CUresult result, completed_waits& completed) noexcept;

private:
  friend class poll_queue_list;
  reactor& home_;
  sync::mutex mutex_;
  pending_wait* first_ = nullptr;
  pending_wait* last_ = nullptr;
  std::size_t urgent_waits_ = 0;
  bool is_polled_ = false;
  pending_wait* polled_oldest_ = nullptr; // null: disarmed meanwhile
  pending_wait* polled_newest_ = nullptr;
  poll_queue_list* listed_in_ = nullptr;
  poll_queue* next_ = nullptr;
  poll_queue* previous_ = nullptr;
};

// queues that have points, the one that was asked longest ago first. Under the reactor's lock.
class poll_queue_list {
public:
  // Takes the queue out of the list that it is in and puts it at the end of another; null: of none.
  static void move(poll_queue& item, poll_queue_list* to) noexcept;
  static poll_queue_list* of(poll_queue const& item) noexcept { return item.listed_in_; }
  poll_queue* first() const noexcept { return first_; }
  bool empty() const noexcept { return first_ == nullptr; }
  std::size_t size() const noexcept { return size_; }

private:
  void unlink(poll_queue& item) noexcept;
  void append(poll_queue& item) noexcept;
  poll_queue* first_ = nullptr;
  poll_queue* last_ = nullptr;
  std::size_t size_ = 0;
};

} // namespace detail
} // namespace gpumem
