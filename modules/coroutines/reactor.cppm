// The reactor: one thread per device that polls the driver for the events of waits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:reactor;
import :cuda;
import :device;
import :poll_queue;
import :std;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

// Queries the oldest event of every poll queue and publishes completions to the streams' timelines. Queues with a wait
// of latency::low are polled without a pause. Others are polled at intervals of 10 to 100 us, which use a fifth of a
// core, or more if one poll of all queues takes over 23 us. Sleeps while no wait is pending. Never destroyed; its
// thread starts at first use and ends before the driver shuts down. Any thread.
class reactor {
public:
  enum class answer {
    armed,   // the reactor will call complete(), unless the wait is removed
    stopped, // a stop was requested before the call
    ended,   // the process is exiting
  };

  explicit reactor(gpumem::device device) noexcept : device_{device} {}
  reactor(reactor const&) = delete;
  reactor& operator=(reactor const&) = delete;

  // Throws std::bad_alloc.
  static reactor& of(gpumem::device device);

  // Returns the poll queue of a stream, or of an event of the user. Throws std::bad_alloc.
  poll_queue& queue_of(stream_timeline const& timeline);
  poll_queue& queue_of(CUevent event);

  // Starts the thread unless it runs. Throws std::system_error if that fails.
  void start();
  // Adds the wait to its queue. If the answer is `armed`, the wait may be completed and destroyed before this returns.
  answer add_wait(pending_wait& point) noexcept __attribute__((requires_capability(point.queue_ -> mutex)));
  // Returns true if it removed the wait, so that complete() will not be called. Returns false if complete() was or is
  // about to be called, or if the wait was never added.
  bool remove_wait(pending_wait& point) noexcept;

  // Returns the number of polling rounds so far; it does not grow while no wait is pending.
  std::uint64_t rounds() const noexcept { return rounds_.load(std::memory_order_relaxed); }

private:
  static constexpr std::size_t batch_size = 32;
  enum class sleep_kind {
    awake,
    dozing,
    asleep
  }; // dozing: a short sleep; of new waits, only one with latency::low ends it

  static void stop_all() noexcept;
  void stop(sync::time_point deadline) noexcept;
  void run();
  void round() __attribute__((requires_capability(mutex_)));
  bool poll(poll_queue_list& queues) __attribute__((requires_capability(mutex_)));
  bool deliver(completed_waits& completed) noexcept __attribute__((requires_capability(mutex_)));
  void fail_all_lost() __attribute__((requires_capability(mutex_)));
  void sleep() __attribute__((requires_capability(mutex_)));
  void enlist(poll_queue& item) noexcept __attribute__((requires_capability(mutex_)));

  gpumem::device const device_;
  std::atomic<bool> started_{false};
  std::atomic<std::uint64_t> rounds_{0};

  sync::mutex mutex_;
  sync::condition wake_;
  sync::condition ended_wake_;
  std::unordered_map<stream_timeline const*, poll_queue> stream_queues_ __attribute__((guarded_by(mutex_)));
  std::unordered_map<CUevent, poll_queue> event_queues_ __attribute__((guarded_by(mutex_)));
  poll_queue_list low_latency_ __attribute__((guarded_by(mutex_)));
  poll_queue_list balanced_ __attribute__((guarded_by(mutex_)));
  std::size_t armed_ __attribute__((guarded_by(mutex_))) = 0;
  bool fresh_ __attribute__((guarded_by(mutex_))) = false; // a wait was added since the last round
  sleep_kind sleep_ __attribute__((guarded_by(mutex_))) = sleep_kind::awake;
  sync::time_point quiet_since_ __attribute__((guarded_by(mutex_))){}; // when a wait was last completed or added
  sync::time_point due_ __attribute__((guarded_by(mutex_))){};         // when the queues in balanced_ are polled next
  bool stopping_ __attribute__((guarded_by(mutex_))) = false;
  bool ended_ __attribute__((guarded_by(mutex_))) = false;
  sync::thread thread_;
};

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
/// Returns the number of polling rounds of the device's reactor in this process; it does not grow while no wait for the
/// device is pending. Throws std::bad_alloc. Any thread.
export std::uint64_t completion_rounds(device where);

} // namespace detail

} // namespace gpumem
