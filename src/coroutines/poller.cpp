// The polling thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
module gpumem:poller.impl;
import :poller;
import :cuda;
import :device;
import :driver;
import :event;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

inline constexpr auto exit_bound = std::chrono::seconds{1};
inline constexpr unsigned eager_rests = 16; // without sleep
inline constexpr unsigned most_doublings = 5;
inline constexpr auto shortest_sleep = std::chrono::nanoseconds{2'000}; // to 64 us

// What one query of an event tells everybody else.
void publish(stream_point const& where, CUresult result) noexcept {
  if (result == CUDA_SUCCESS && where.order) where.order->publish_completed(where.covers);
  if (sticky(result) && where.device >= 0) device{where.device}.lose(result);
}

} // namespace

poller& poller::instance() {
  static auto* const one = new poller;
  return *one;
}

void poller::start() {
  sync::lock const held{guard_};
  if (thread_.joinable() || stopping_) return;
  thread_ = sync::thread{[this] { run(); }};
  at_driver_exit(stop_at_exit);
}

void poller::stop_at_exit() noexcept {
  auto& self = instance();
  sync::lock held{self.guard_};
  self.stopping_ = true;
  self.wake_.notify_one();
  auto const deadline = sync::now() + exit_bound;
  while (!self.ended_ && sync::now() < deadline) self.ended_wake_.wait_until(held, deadline);
  bool const ended = self.ended_;
  held.unlock();
  if (ended) self.thread_.join();
}

void poller::push(armed_point& point) noexcept {
  point.state_ = armed_point::state::armed;
  point.next_ = nullptr;
  point.previous_ = last_;
  (last_ ? last_->next_ : first_) = &point;
  last_ = &point;
  ++armed_;
}

void poller::unlink(armed_point& point) noexcept {
  (point.previous_ ? point.previous_->next_ : first_) = point.next_;
  (point.next_ ? point.next_->previous_ : last_) = point.previous_;
  --armed_;
}

poller::answer poller::arm(armed_point& point) noexcept {
  sync::lock const held{guard_};
  if (point.stop_requested_.load(std::memory_order_acquire)) return answer::stopped;
  if (stopping_) return answer::ended;
  push(point);
  wake_.notify_one();
  return answer::armed;
}

bool poller::disarm(armed_point& point) noexcept {
  sync::lock const held{guard_};
  switch (point.state_) {
  case armed_point::state::idle: return false;
  case armed_point::state::armed: unlink(point); break;
  case armed_point::state::asked: batch_[point.slot_].point = nullptr; break;
  }
  point.state_ = armed_point::state::idle;
  return true;
}

void poller::run() {
  relaxed_capture const relaxed;
  sync::lock held{guard_};
  for (;;) {
    while (!first_ && !stopping_) wake_.wait(held);
    if (stopping_) break;
    ask(held);
    answer_batch(held);
    if (first_ && unready_ >= armed_) rest(held);
  }
  ended_ = true;
  ended_wake_.notify_all();
}

// Takes some points off the front of the list, and queries their events without the lock.
void poller::ask(sync::lock& held) {
  for (asked_ = 0; first_ && asked_ < batch_size; ++asked_) {
    auto& point = *first_;
    unlink(point);
    point.state_ = armed_point::state::asked;
    point.slot_ = asked_;
    batch_[asked_] = {&point, point.where_.event, CUDA_ERROR_NOT_READY};
  }
  held.unlock();
  for (std::size_t i = 0; i < asked_; ++i) batch_[i].result = driver().event_query(batch_[i].event);
  held.lock();
}

// Tells those whose event has an answer; the others go to the end of the list.
void poller::answer_batch(sync::lock& held) {
  std::array<question, batch_size> told;
  std::size_t count = 0;
  for (std::size_t i = 0; i < asked_; ++i) {
    auto const& asked = batch_[i];
    if (!asked.point) continue;
    if (asked.result == CUDA_ERROR_NOT_READY) {
      push(*asked.point);
      ++unready_;
      continue;
    }
    asked.point->state_ = armed_point::state::idle;
    publish(asked.point->where_, asked.result);
    told[count++] = asked;
  }
  asked_ = 0;
  if (count == 0) return;
  unready_ = 0;
  rests_ = 0;
  held.unlock();
  for (std::size_t i = 0; i < count; ++i) told[i].point->reached(told[i].result);
  held.lock();
}

// After a round in vain: at first only lets others have the lock, then sleeps, longer each time, or until more is
// armed.
void poller::rest(sync::lock& held) {
  unready_ = 0;
  if (rests_ < eager_rests) {
    ++rests_;
    held.unlock();
    sync::mark();
    held.lock();
    return;
  }
  auto const doublings = std::min(rests_ - eager_rests, most_doublings);
  if (doublings < most_doublings) ++rests_;
  wake_.wait_until(held, sync::now() + shortest_sleep * (1u << doublings));
}

} // namespace gpumem::detail
