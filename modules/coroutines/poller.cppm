// One plain thread that asks the driver about events until they are complete.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <atomic>
#include <cstddef>
export module gpumem:poller;
import :cuda;
import :event;
import :sync;

namespace gpumem::detail {

// A point that somebody waits for; in place in the waiting operation.
//
// state | who may touch it
// idle  | its owner alone
// armed | in the poller's list, under its lock
// asked | in the poller's batch, under its lock; the event is being queried without it
class armed_point {
public:
  armed_point(armed_point const&) = delete;
  armed_point& operator=(armed_point const&) = delete;

protected:
  armed_point() = default;
  ~armed_point() = default;

  // Once, on the poller's thread and without its lock: what the query of the event said, never "not ready". The last
  // touch.
  virtual void reached(CUresult result) noexcept = 0;

  stream_point where_;
  std::atomic<bool> stop_requested_{false};

private:
  friend class poller;
  enum class state { idle, armed, asked };
  state state_ = state::idle;
  std::size_t slot_ = 0; // in the batch
  armed_point* next_ = nullptr;
  armed_point* previous_ = nullptr;
};

// Queries every armed event in turn, and publishes what it sees to the streams' timelines. Sleeps while nothing is
// armed. Never destroyed; its thread starts at first use and ends before the driver goes. Any thread.
class poller {
public:
  enum class answer {
    armed,   // it will be told, unless it is disarmed
    stopped, // a stop was requested before
    ended,   // the process is exiting
  };

  static poller& instance();

  // Throws std::system_error where the thread cannot be started.
  void start();
  // After `armed` the point may be told, and gone, before this returns.
  answer arm(armed_point& point) noexcept;
  // True: nobody will tell it any more. False: it was told, or is about to be, or was never armed.
  bool disarm(armed_point& point) noexcept;

private:
  static constexpr std::size_t batch_size = 32;
  struct question {
    armed_point* point; // null: disarmed meanwhile
    CUevent event;
    CUresult result;
  };

  static void stop_at_exit() noexcept;
  void run();
  void ask(sync::lock& held);
  void answer_batch(sync::lock& held);
  void rest(sync::lock& held);
  void push(armed_point& point) noexcept;
  void unlink(armed_point& point) noexcept;

  sync::mutex guard_;
  sync::condition wake_;
  sync::condition ended_wake_;
  armed_point* first_ = nullptr;
  armed_point* last_ = nullptr;
  std::size_t armed_ = 0; // in the list
  std::array<question, batch_size> batch_;
  std::size_t asked_ = 0;   // in the batch
  std::size_t unready_ = 0; // queried in vain since the last rest
  unsigned rests_ = 0;      // since something was reached
  bool stopping_ = false;
  bool ended_ = false;
  sync::thread thread_;
};

} // namespace gpumem::detail
