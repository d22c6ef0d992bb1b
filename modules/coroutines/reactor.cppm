// One thread a device that asks the driver about events until they are complete.
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

// Asks about the oldest point of every queue, and publishes what it sees to the streams' timelines. queues in which
// somebody wants low latency are asked without a pause; the others at intervals that keep the thread below a fifth of a
// core. Sleeps while nothing is armed. Never destroyed; its thread starts at first use and ends before the driver goes.
// Any thread.
class reactor {
public:
  enum class answer {
    armed,   // it will be told, unless it is disarmed
    stopped, // a stop was requested before
    ended,   // the process is exiting
  };

  explicit reactor(gpumem::device device) noexcept : device_{device} {}
  reactor(reactor const&) = delete;
  reactor& operator=(reactor const&) = delete;

  // Throws std::bad_alloc.
  static reactor& of(gpumem::device device);

  // The queue of a stream, or of an event of the user. Throws std::bad_alloc.
  poll_queue& queue_of(stream_timeline const& timeline);
  poll_queue& queue_of(CUevent event);

  // Throws std::system_error where the thread cannot be started.
  void start();
  // After `armed` the point may be told, and gone, before this returns. By whoever holds the queue's order.
  answer add_wait(pending_wait& point) noexcept;
  // True: nobody will tell it any more. False: it was told, or is about to be, or was never armed.
  bool remove_wait(pending_wait& point) noexcept;

  // How often it has looked for something to ask; stands still while nothing is armed.
  std::uint64_t rounds() const noexcept { return rounds_.load(std::memory_order_relaxed); }

private:
  static constexpr std::size_t batch_size = 32;
  enum class sleep_kind { awake, dozing, asleep }; // dozing: not worth being woken by a point that can wait

  static void stop_all() noexcept;
  void stop(sync::time_point deadline) noexcept;
  void run();
  void round(sync::lock& held);
  bool poll(poll_queue_list& queues, sync::lock& held);
  bool deliver(completed_waits& completed, sync::lock& held) noexcept;
  void fail_all_lost(sync::lock& held);
  void sleep(sync::lock& held);
  void enlist(poll_queue& item) noexcept;

  gpumem::device const device_;
  std::atomic<bool> started_{false};
  std::atomic<std::uint64_t> rounds_{0};

  sync::mutex mutex_;
  sync::condition wake_;
  sync::condition ended_wake_;
  std::unordered_map<stream_timeline const*, poll_queue> stream_queues_;
  std::unordered_map<CUevent, poll_queue> event_queues_;
  poll_queue_list low_latency_;
  poll_queue_list balanced_;
  std::size_t armed_ = 0;
  bool fresh_ = false; // something was armed since the last round
  sleep_kind sleep_ = sleep_kind::awake;
  sync::time_point quiet_since_{}; // when something was reached or armed last
  sync::time_point due_{};         // when the patient are asked next
  bool stopping_ = false;
  bool ended_ = false;
  sync::thread thread_;
};

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
/// How often the thread that waits for a device has looked for something to ask, in this process. Stands still while no
/// wait for that device is armed. Throws std::bad_alloc. Any thread.
export std::uint64_t completion_rounds(device where);

} // namespace detail

} // namespace gpumem
