// The threads of a thread_pool_executor and their queue.
// SPDX-License-Identifier: Apache-2.0
module;
#include <pthread.h>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>
module gpumem:thread_pool_executor.impl;
import :thread_pool_executor;
import :driver;
import :executor;
import :process;
import :sync;

namespace gpumem {

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
  void wake_one() noexcept __attribute__((requires_capability(mutex_)));
  sync::mutex mutex_;
  sync::condition wake_;
  std::size_t sleeping_ __attribute__((guarded_by(mutex_))) = 0;
  bool waking_ __attribute__((guarded_by(mutex_))) = false; // a thread was notified and does not run yet
  work_queue queue_ __attribute__((guarded_by(mutex_)));
  bool stopping_ __attribute__((guarded_by(mutex_))) = false;
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
    sync::lock const held{mutex_};
    stopping_ = true;
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

// Notifies under the lock: once the lock is free, the item may run and the owner of the item may destroy the executor.
void thread_pool_executor::state::post(work_item& item) noexcept {
  sync::lock const held{mutex_};
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
  sync::lock const held{mutex_};
  return queue_.remove(item);
}

void thread_pool_executor::state::run() {
  pthread_setname_np(pthread_self(), "gpumem-worker");
  sync::lock const held{mutex_};
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
