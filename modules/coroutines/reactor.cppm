// The reactors: they poll the driver for the CUDA events for which coroutines wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_map>
export module gpumem:reactor;
import :cuda;
import :device;
import :executor;
import :poll_queue;
import :std;
import :stream_timeline;
import :sync;
import :timer;

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
  answer add_wait(pending_wait& point) noexcept __attribute__((requires_capability(point.queue_ -> mutex)));
  // Returns true if it removed the wait; complete() will then not be called. Returns false if complete() was called, is
  // about to be called, or if the wait was never added.
  bool remove_wait(pending_wait& point) noexcept;

private:
  static constexpr std::size_t batch_size = 32;

  static void stop_all() noexcept;
  void expire() noexcept override;
  void round(sync::time_point begin) __attribute__((requires_capability(mutex_)));
  void set_due(sync::time_point end, sync::duration busy, sync::duration quiet) noexcept
      __attribute__((requires_capability(mutex_)));
  // The queues of which a poll has asked the driver, and how many of them had complete waits.
  struct answers {
    std::size_t asked = 0, complete = 0;
    void add(answers const& more) noexcept { asked += more.asked, complete += more.complete; }
  };
  answers poll(poll_queue_list& queues) __attribute__((requires_capability(mutex_)));
  answers ask(std::span<poll_request> batch, std::size_t max_misses) __attribute__((requires_capability(mutex_)));
  void deliver(completed_waits& completed) noexcept __attribute__((requires_capability(mutex_)));
  void fail_all_lost() __attribute__((requires_capability(mutex_)));
  void schedule(sync::time_point when) noexcept __attribute__((requires_capability(mutex_)));
  void enlist(poll_queue& item) noexcept __attribute__((requires_capability(mutex_)));

  gpumem::device const device_;
  executor_thread& home_;
  std::atomic<std::uint64_t> rounds_{0};

  sync::spin_mutex mutex_;
  std::unordered_map<stream_timeline const*, poll_queue> stream_queues_ __attribute__((guarded_by(mutex_)));
  std::unordered_map<CUevent, poll_queue> event_queues_ __attribute__((guarded_by(mutex_)));
  poll_queue_list low_latency_ __attribute__((guarded_by(mutex_)));
  poll_queue_list balanced_ __attribute__((guarded_by(mutex_)));
  std::size_t armed_ __attribute__((guarded_by(mutex_))) = 0;
  // When the next round begins. It is time_point::min() during a round, and time_point::max() while no wait is pending.
  sync::time_point next_ __attribute__((guarded_by(mutex_))) = sync::time_point::max();
  sync::time_point quiet_since_ __attribute__((guarded_by(mutex_))){}; // when a wait was last completed or added
  sync::duration lasted_ __attribute__((guarded_by(mutex_))){}; // how long it had been quiet at the last completion
  sync::time_point due_ __attribute__((guarded_by(mutex_))){};  // when the queues in balanced_ are polled next
  sync::time_point fair_ __attribute__((guarded_by(mutex_))){}; // due_ is at least this, however many waits are added
  // A new wait has a first pause of 10 to 50 us before it is polled. soon_ and added_ describe the waits that were
  // added since the last poll of balanced_ began. soon_ is the earliest end of their first pauses, and added_ is their
  // number.
  sync::time_point soon_ __attribute__((guarded_by(mutex_))) = sync::time_point::max();
  std::size_t added_ __attribute__((guarded_by(mutex_))) = 0;
  bool stopping_ __attribute__((guarded_by(mutex_))) = false;
};

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
/// Returns the number of polling rounds of the device's reactors in this process; it does not grow while no wait for
/// the device is pending. Any thread.
export std::uint64_t completion_rounds(device where) noexcept;

} // namespace detail

} // namespace gpumem
