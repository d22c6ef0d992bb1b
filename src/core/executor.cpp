// Executors.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
module gpumem:executor.impl;
import :executor;
import :driver;
import :fork;
import :sync;

namespace gpumem {

void resumption_queue::push(resumption& item) noexcept {
  item.next_ = nullptr;
  item.previous_ = last_;
  item.queued_ = true;
  (last_ ? last_->next_ : first_) = &item;
  last_ = &item;
}

resumption* resumption_queue::pop() noexcept {
  auto* const item = first_;
  if (item) remove(*item);
  return item;
}

bool resumption_queue::remove(resumption& item) noexcept {
  if (!item.queued_) return false;
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
  item.queued_ = false;
  return true;
}

void inline_executor::post(resumption& item) noexcept {
  if (detail::forked()) return;
  sync::lock const held{guard_};
  queue_.push(item);
}

bool inline_executor::retract(resumption& item) noexcept {
  if (detail::forked()) return false;
  sync::lock const held{guard_};
  return queue_.remove(item);
}

namespace {
// The executor that this thread flushes now: a flush inside a flush leaves the work to the outer one.
thread_local inline_executor const* flushing = nullptr;
// The state of the executor whose thread this is.
thread_local void const* running_on = nullptr;
} // namespace

void inline_executor::flush() noexcept {
  if (flushing == this || detail::forked()) return;
  auto* const outer = std::exchange(flushing, this);
  for (;;) {
    resumption* item = nullptr;
    {
      sync::lock const held{guard_};
      item = queue_.pop();
    }
    if (!item) break;
    item->resume();
  }
  flushing = outer;
}

// Apart, because a forked child must not destroy it: the executor's thread is missing there, and the destructor of a
// condition waits for threads that wait.
class thread_executor::state {
public:
  state() : thread_{[this] { run(); }} {}
  state(state const&) = delete;
  state& operator=(state const&) = delete;
  ~state();
  void post(resumption& item) noexcept;
  bool retract(resumption& item) noexcept;
  bool abandon(sync::duration bound) noexcept;

private:
  void run();
  sync::mutex guard_;
  sync::condition wake_;
  resumption_queue queue_;
  sync::condition ended_wake_;
  bool stopping_ = false;
  bool abandoned_ = false;
  bool ended_ = false;
  sync::thread thread_;
};

thread_executor::thread_executor() {
  detail::refuse_child();
  detail::note_use();
  state_ = std::make_unique<state>();
}

thread_executor::~thread_executor() {
  if (detail::forked()) [[maybe_unused]]
    auto* const left = state_.release();
}

void thread_executor::post(resumption& item) noexcept {
  if (!detail::forked()) state_->post(item);
}

bool thread_executor::retract(resumption& item) noexcept { return !detail::forked() && state_->retract(item); }

bool thread_executor::abandon(sync::duration bound) noexcept { return !detail::forked() && state_->abandon(bound); }

thread_executor::state::~state() {
  {
    sync::lock const held{guard_};
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// Notified under the lock: what is posted may run, and its owner destroy the executor, as soon as the lock is free.
void thread_executor::state::post(resumption& item) noexcept {
  sync::lock const held{guard_};
  queue_.push(item);
  wake_.notify_one();
}

bool thread_executor::state::retract(resumption& item) noexcept {
  sync::lock const held{guard_};
  return queue_.remove(item);
}

bool thread_executor::state::abandon(sync::duration bound) noexcept {
  sync::lock held{guard_};
  abandoned_ = true;
  wake_.notify_one();
  if (running_on == this) return false;
  auto const deadline = sync::now() + bound;
  while (!ended_ && sync::now() < deadline) ended_wake_.wait_until(held, deadline);
  if (!ended_) return false;
  held.unlock();
  thread_.join();
  return true;
}

void thread_executor::state::run() {
  running_on = this;
  sync::lock held{guard_};
  for (;;) {
    while (queue_.empty() && !stopping_ && !abandoned_) wake_.wait(held);
    auto* const item = abandoned_ ? nullptr : queue_.pop();
    if (!item) break; // stopping, and nothing left
    held.unlock();
    item->resume();
    held.lock();
  }
  ended_ = true;
  ended_wake_.notify_all();
}

namespace {
inline constexpr auto exit_bound = std::chrono::seconds{1};

// Never freed: operations may post during static destruction; its thread ends before the driver goes.
struct library_thread {
  sync::mutex guard;
  std::atomic<thread_executor*> running{nullptr};
};

library_thread& the_library_thread() {
  static auto* const instance = new library_thread;
  return *instance;
}

void stop_library_thread() noexcept { the_library_thread().running.load()->abandon(exit_bound); }
} // namespace

executor& library_executor() {
  detail::refuse_child();
  auto& library = the_library_thread();
  if (auto* const running = library.running.load(std::memory_order_acquire)) return *running;
  sync::lock const held{library.guard};
  if (auto* const running = library.running.load(std::memory_order_acquire)) return *running;
  auto* const started = new thread_executor;
  library.running.store(started, std::memory_order_release);
  detail::at_driver_exit(stop_library_thread);
  return *started;
}

} // namespace gpumem
