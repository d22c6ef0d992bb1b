// executor_adaptor: its queue holds the items that gpumem posts, until a user's job system runs them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <memory>
#include <utility>
module gpumem:executor_adaptor.impl;
import :executor_adaptor;
import :driver;
import :executor;
import :process;
import :sync;

namespace gpumem::detail {
namespace {
// The innermost call of an adaptor's function on the calling thread; null if there is none.
thread_local adapted_call const* innermost = nullptr;
} // namespace

adapted_call::adapted_call(adapted_queue& queue, work_item& item) noexcept
    : queue_{queue}, outer_{std::exchange(innermost, this)} {
  sync::lock const held{queue_.mutex_};
  ++queue_.calls_;
  queue_.queue_.push(item);
}

adapted_call::~adapted_call() {
  innermost = outer_;
  sync::lock const held{queue_.mutex_};
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
  auto const own = adapted_call::count_own(*this);
  sync::lock const held{mutex_};
  while (calls_ > own) call_ended_.wait(mutex_);
  return own == 0;
}

bool adapted_queue::remove(work_item& item) noexcept {
  if (forked()) return false;
  sync::lock const held{mutex_};
  return queue_.remove(item);
}

bool adapted_queue::run_one() noexcept {
  if (forked()) return false;
  work_item* item = nullptr;
  {
    sync::lock const held{mutex_};
    item = queue_.pop();
  }
  if (item) item->resume();
  return item != nullptr;
}

void adapted_queue::rescue(std::shared_ptr<adapted_queue> self) noexcept {
  sync::lock const held{mutex_};
  if (rescuer_.keeps) return; // the rescuer, the item that runs all queued items, is posted already
  rescuer_.keeps = std::move(self);
  default_executor().post(rescuer_);
}

// Clears `keeps` before it runs items, so that a later rescue() posts the rescuer again.
void adapted_queue::rescuer::resume() noexcept {
  std::shared_ptr<adapted_queue> from;
  {
    sync::lock const held{keeps->mutex_};
    from.swap(keeps);
  }
  while (from->run_one()) {}
}

} // namespace gpumem::detail
