// The threads and their queue.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:thread_pool_executor.impl;
import :thread_pool_executor;
import :executor;
import :fork;
import :sync;

namespace gpumem {

thread_pool_executor::thread_pool_executor(std::size_t threads) {
  if (threads == 0) throw std::invalid_argument{"gpumem: an executor without threads would run nothing"};
  threads_.reserve(threads);
  try {
    while (threads_.size() < threads) threads_.emplace_back([this] { run(); });
  } catch (...) {
    stop();
    throw;
  }
}

thread_pool_executor::~thread_pool_executor() {
  if (detail::forked()) { // its threads are not here: neither to be joined nor to be destroyed
    [[maybe_unused]] auto* const left = new std::vector<sync::thread>{std::move(threads_)};
  } else {
    stop();
  }
}

void thread_pool_executor::stop() noexcept {
  {
    sync::lock const held{guard_};
    stopping_ = true;
    wake_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

// Notified under the lock: what is posted may run, and its owner destroy the executor, as soon as the lock is free.
void thread_pool_executor::post(resumption& item) noexcept {
  sync::lock const held{guard_};
  queue_.push(item);
  wake_.notify_one();
}

bool thread_pool_executor::retract(resumption& item) noexcept {
  sync::lock const held{guard_};
  return queue_.remove(item);
}

void thread_pool_executor::run() {
  sync::lock held{guard_};
  for (;;) {
    while (queue_.empty() && !stopping_) wake_.wait(held);
    auto* const item = queue_.pop();
    if (!item) return; // stopping, and nothing left
    held.unlock();
    item->resume();
    held.lock();
  }
}

} // namespace gpumem
