// The executors, the adaptor of a user's job system, and the library thread, which is the default executor and runs the
// timers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <pthread.h>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:executor.impl;
import :executor;
import :driver;
import :process;
import :sync;
import :timer;

namespace gpumem {

void work_queue::push(work_item& item) noexcept {
  item.queued_ = true;
  items_.push_back(item);
}

work_item* work_queue::pop() noexcept {
  auto* const item = items_.first();
  if (item) remove(*item);
  return item;
}

bool work_queue::remove(work_item& item) noexcept {
  if (!item.queued_) return false;
  items_.remove(item);
  item.queued_ = false;
  return true;
}

void inline_executor::post(work_item& item) noexcept {
  if (detail::forked()) return;
  sync::lock const lock{mutex_};
  queue_.push(item);
}

bool inline_executor::try_cancel(work_item& item) noexcept {
  if (detail::forked()) return false;
  sync::lock const lock{mutex_};
  return queue_.remove(item);
}

namespace {
// The executor whose flush() runs on this thread. If an item calls flush() again, the outer flush() runs the new items.
thread_local inline_executor const* flushing = nullptr;
// The executor_thread to which this thread belongs; null for other threads.
thread_local void const* running_on = nullptr;
} // namespace

void inline_executor::flush() noexcept {
  if (flushing == this || detail::forked()) return;
  auto* const outer = std::exchange(flushing, this);
  for (;;) {
    work_item* item = nullptr;
    {
      sync::lock const lock{mutex_};
      item = queue_.pop();
    }
    if (!item) break;
    item->resume();
  }
  flushing = outer;
}

namespace {
std::unique_ptr<detail::executor_thread> make_thread(char const* name) {
  detail::throw_if_child();
  detail::set_in_use();
  return std::make_unique<detail::executor_thread>(name);
}
} // namespace

thread_executor::thread_executor() : thread_{make_thread("gpumem-executor")} {}

thread_executor::~thread_executor() {
  if (detail::forked()) [[maybe_unused]]
    auto* const left = thread_.release();
}

void thread_executor::post(work_item& item) noexcept { thread_->post(item); }

bool thread_executor::try_cancel(work_item& item) noexcept { return thread_->try_cancel(item); }

bool thread_executor::stop_within(sync::duration bound) noexcept { return thread_->stop_within(bound); }

detail::executor_thread::~executor_thread() {
  {
    sync::lock const lock{mutex_};
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// Notifies under the lock: once the lock is free, the item may run and the owner of the item may destroy the executor.
void detail::executor_thread::post(work_item& item) noexcept {
  if (forked()) return;
  sync::lock const lock{mutex_};
  queue_.push(item);
  wake_.notify_one();
}

bool detail::executor_thread::try_cancel(work_item& item) noexcept {
  if (forked()) return false;
  sync::lock const lock{mutex_};
  return queue_.remove(item);
}

bool detail::executor_thread::stop_within(sync::duration bound) noexcept {
  if (forked()) return false;
  sync::lock lock{mutex_};
  stopped_within_ = true;
  wake_.notify_one();
  auto const deadline = sync::now() + (running_on == this ? sync::duration::zero() : bound);
  while (!ended_ && sync::now() < deadline) over_.wait_until(mutex_, deadline);
  detached_ = !ended_;
  over_.notify_all();
  if (detached_) return false;
  lock.unlock();
  thread_.join();
  return true;
}

void detail::executor_thread::start(timer& item, sync::time_point deadline) noexcept {
  sync::lock const lock{mutex_};
  timers_.insert(item, deadline);
  if (timers_.first() == &item) wake_.notify_one();
}

void detail::executor_thread::cancel(timer& item) noexcept {
  sync::lock const lock{mutex_};
  timers_.remove(item);
  if (expiring_ != &item) return;
  if (running_on == this) {
    expiring_ = nullptr; // a later timer may have this address, and its cancel() must not wait
  } else {
    while (expiring_ == &item && !detached_) over_.wait(mutex_);
  }
}

bool detail::executor_thread::try_cancel(timer& item) noexcept {
  sync::lock const lock{mutex_};
  return timers_.remove(item);
}

namespace {
// An item that is queued after other items and tells when these have run.
struct end_mark final : work_item {
  bool passed = false;
  void resume() noexcept override { passed = true; }
};
} // namespace

void detail::executor_thread::run(char const* name) {
  pthread_setname_np(pthread_self(), name);
  running_on = this;
  sync::lock const lock{mutex_};
  while (!stopped_within_) {
    // Each round runs one timer, then the items that are queued at that moment. So timers and items cannot keep each
    // other from running, even if a timer is always due or each item posts another one.
    bool const expired = expire_first();
    if (!queue_.empty()) {
      end_mark end;
      queue_.push(end);
      while (!end.passed && resume_first()) {}
      queue_.remove(end);
    } else if (!expired) {
      if (stopping_) break;
      wait_for_work();
    }
  }
  ended_ = true;
  over_.notify_all();
}

// Waits until an item is posted or a timer is due.
void detail::executor_thread::wait_for_work() {
  if (auto const* const next = timers_.first()) {
    wake_.wait_until(mutex_, timer_heap::moment_of(*next));
  } else {
    wake_.wait(mutex_);
  }
}

bool detail::executor_thread::resume_first() {
  auto* const item = stopped_within_ ? nullptr : queue_.pop();
  if (!item) return false;
  sync::scoped_unlock const meanwhile{mutex_};
  item->resume();
  return true;
}

bool detail::executor_thread::expire_first() {
  auto* const item = timers_.first();
  if (!item || sync::now() < timer_heap::moment_of(*item)) return false;
  timers_.remove(*item);
  expiring_ = item;
  {
    sync::scoped_unlock const meanwhile{mutex_};
    item->expire();
  }
  expiring_ = nullptr;
  over_.notify_all();
  return true;
}

namespace {
inline constexpr auto exit_bound = std::chrono::seconds{1};

// Never freed, since operations may post during static destruction. The thread ends before the driver shuts down.
struct library_thread {
  sync::mutex mutex;
  std::atomic<detail::executor_thread*> running{nullptr};
};

// Takes no host memory, since noexcept functions call it.
library_thread& the_library_thread() noexcept {
  alignas(library_thread) static std::byte place[sizeof(library_thread)];
  static auto* const instance = ::new (place) library_thread;
  return *instance;
}

void stop_library_thread() noexcept { the_library_thread().running.load()->stop_within(exit_bound); }

detail::executor_thread& started_library_thread() {
  detail::throw_if_child();
  auto& library = the_library_thread();
  if (auto* const running = library.running.load(std::memory_order_acquire)) return *running;
  sync::lock const lock{library.mutex};
  if (auto* const running = library.running.load(std::memory_order_acquire)) return *running;
  auto* const started = make_thread("gpumem-library").release();
  library.running.store(started, std::memory_order_release);
  detail::at_driver_exit(stop_library_thread);
  return *started;
}
} // namespace

executor& default_executor() { return started_library_thread(); }

detail::executor_thread* detail::running_library_thread() noexcept {
  return the_library_thread().running.load(std::memory_order_acquire);
}

void detail::start_timer(timer& item, sync::time_point deadline) {
  auto& thread = started_library_thread();
  item.started_ = true; // set first: the started timer may expire and be destroyed immediately
  thread.start(item, deadline);
}

void detail::cancel_started(timer& item) noexcept {
  if (!forked()) running_library_thread()->cancel(item);
}

bool detail::try_cancel_timer(timer& item) noexcept { return !forked() && running_library_thread()->try_cancel(item); }

// The threads and the queue. They are a separate object, so that a forked child can leave it alive: its threads do not
// exist there.
class thread_pool_executor::state {
public:
  explicit state(std::size_t threads);
  state(state const&) = delete;
  state& operator=(state const&) = delete;
  ~state() { stop(); }
  void post(work_item& item) noexcept;
  bool try_cancel(work_item& item) noexcept;
  std::size_t size() const noexcept { return threads_.size(); }

private:
  void run();
  void stop() noexcept;
  void wake_one() noexcept GPUMEM_REQUIRES(mutex_);
  sync::mutex mutex_;
  sync::condition wake_;
  std::size_t sleeping_ GPUMEM_GUARDED_BY(mutex_) = 0;
  bool waking_ GPUMEM_GUARDED_BY(mutex_) = false; // a thread was notified and does not run yet
  work_queue queue_ GPUMEM_GUARDED_BY(mutex_);
  bool stopping_ GPUMEM_GUARDED_BY(mutex_) = false;
  std::vector<sync::thread> threads_;
};

thread_pool_executor::thread_pool_executor(std::size_t threads) {
  detail::throw_if_child();
  detail::set_in_use();
  if (threads == 0) throw std::invalid_argument{"gpumem: thread_pool_executor needs at least one thread"};
  state_ = std::make_unique<state>(threads);
}

thread_pool_executor::~thread_pool_executor() {
  if (detail::forked()) [[maybe_unused]]
    auto* const left = state_.release();
}

std::size_t thread_pool_executor::size() const noexcept { return state_->size(); }

void thread_pool_executor::post(work_item& item) noexcept {
  if (!detail::forked()) state_->post(item);
}

bool thread_pool_executor::try_cancel(work_item& item) noexcept {
  return !detail::forked() && state_->try_cancel(item);
}

thread_pool_executor::state::state(std::size_t threads) {
  threads_.reserve(threads);
  try {
    while (threads_.size() < threads) threads_.emplace_back([this] { run(); });
  } catch (...) {
    stop();
    throw;
  }
}

void thread_pool_executor::state::stop() noexcept {
  {
    sync::lock const lock{mutex_};
    stopping_ = true;
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

// Notifies under the lock: once the lock is free, the item may run and the owner of the item may destroy the executor.
void thread_pool_executor::state::post(work_item& item) noexcept {
  sync::lock const lock{mutex_};
  queue_.push(item);
  wake_one();
}

// Wakes a thread, unless one is waking up: that one wakes the next if items are left for it. So a thread that posts
// many items notifies once, and items that end before a thread has woken up cost no further wake-up.
void thread_pool_executor::state::wake_one() noexcept {
  if (sleeping_ == 0 || waking_) return;
  waking_ = true;
  wake_.notify_one();
}

bool thread_pool_executor::state::try_cancel(work_item& item) noexcept {
  sync::lock const lock{mutex_};
  return queue_.remove(item);
}

void thread_pool_executor::state::run() {
  pthread_setname_np(pthread_self(), "gpumem-worker");
  sync::lock const lock{mutex_};
  for (;;) {
    while (queue_.empty() && !stopping_) {
      ++sleeping_;
      wake_.wait(mutex_);
      --sleeping_;
      waking_ = false;
    }
    auto* const item = queue_.pop();
    if (!item) return; // stopping, and the queue is empty
    if (!queue_.empty()) wake_one();
    sync::scoped_unlock const meanwhile{mutex_};
    item->resume();
  }
}

} // namespace gpumem

namespace gpumem::detail {
namespace {
// The innermost call of an adaptor's function on the calling thread; null if there is none.
thread_local adapted_call const* innermost = nullptr;
} // namespace

adapted_call::adapted_call(adapted_queue& queue, work_item& item) noexcept
    : queue_{queue}, outer_{std::exchange(innermost, this)} {
  sync::lock const lock{queue_.mutex_};
  ++queue_.calls_;
  queue_.queue_.push(item);
}

adapted_call::~adapted_call() {
  innermost = outer_;
  sync::lock const lock{queue_.mutex_};
  --queue_.calls_;
  queue_.call_ended_.notify_all();
}

std::size_t adapted_call::count_own(adapted_queue const& queue) noexcept {
  std::size_t count = 0;
  for (auto const* call = innermost; call; call = call->outer_) count += &call->queue_ == &queue;
  return count;
}

adapted_queue::adapted_queue() {
  throw_if_child();
  set_in_use();
}

bool adapted_queue::wait_for_calls() noexcept {
  if (forked()) return false; // the parent's threads do not exist here, so their calls never end
  auto const nested = adapted_call::count_own(*this);
  sync::lock const lock{mutex_};
  while (calls_ > nested) call_ended_.wait(mutex_);
  return nested == 0;
}

bool adapted_queue::remove(work_item& item) noexcept {
  if (forked()) return false;
  sync::lock const lock{mutex_};
  return queue_.remove(item);
}

bool adapted_queue::run_one() noexcept {
  if (forked()) return false;
  work_item* item = nullptr;
  {
    sync::lock const lock{mutex_};
    item = queue_.pop();
  }
  if (item) item->resume();
  return item != nullptr;
}

void adapted_queue::rescue(std::shared_ptr<adapted_queue> self) noexcept {
  sync::lock const lock{mutex_};
  if (rescuer_.keeps) return; // the rescuer, the item that runs all queued items, is posted already
  rescuer_.keeps = std::move(self);
  default_executor().post(rescuer_);
}

// Clears `keeps` before it runs items, so that a later rescue() posts the rescuer again.
void adapted_queue::rescuer::resume() noexcept {
  std::shared_ptr<adapted_queue> queue;
  {
    sync::lock const lock{keeps->mutex_};
    queue.swap(keeps);
  }
  while (queue->run_one()) {}
}

} // namespace gpumem::detail
