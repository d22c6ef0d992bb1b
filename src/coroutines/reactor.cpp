// The reactor: its thread, its polling rounds and its pauses.
// SPDX-License-Identifier: Apache-2.0
module;
#include <pthread.h>
#include <sys/prctl.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
module gpumem:reactor.impl;
import :reactor;
import :cuda;
import :device;
import :driver;
import :event;
import :fork;
import :poll_queue;
import :sync;
import :stream_timeline;

namespace gpumem::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

inline constexpr auto exit_bound = std::chrono::seconds{1};
inline constexpr auto min_pause = microseconds{10};
inline constexpr auto max_extra_pause = microseconds{50};
inline constexpr auto max_pause = microseconds{100};
inline constexpr auto pause_cost = microseconds{2};        // host time to fall asleep and to wake up
inline constexpr auto spin_before_yield = milliseconds{1}; // of spinning without a completion, before the thread yields

// Returns the pause until the next poll: the longer of the two below, but 10 to 100 us.
// - 4 times the duration of the last poll: the thread is then busy for 1/5 of the time. The bound of 100 us makes it
//   busier if a poll takes over 23 us.
// - 1/32 of the time since the last completion, at most 50 us: it adds 3 % to the latency of a long wait.
sync::duration pause_after(sync::duration busy, sync::duration quiet) noexcept {
  auto const fair = (busy + pause_cost) * 4;
  auto const extra = std::min<sync::duration>(quiet / 32, max_extra_pause);
  return std::clamp<sync::duration>(std::max(fair, extra), min_pause, max_pause);
}

// The default timer slack of Linux makes a sleep last up to 50 us longer; this sets it to 1 ns.
void sleep_precisely() noexcept { prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); }

void query(poll_request& request) {
  auto const& ask = driver().event_query;
  request.oldest_result = ask(request.oldest);
  if (request.oldest == request.newest) {
    request.newest_result = request.oldest_result;
  } else if (request.oldest_result == CUDA_SUCCESS) {
    request.newest_result = ask(request.newest);
  }
}

// Publishes a complete event to the timeline of its stream, where pools see it.
void publish(stream_point const& where, CUresult result) noexcept {
  if (result == CUDA_SUCCESS && where.timeline) where.timeline->publish_completed(where.covers);
}

inline constexpr std::size_t max_devices = 64;

struct reactor_table {
  sync::mutex mutex;
  bool stops_at_exit __attribute__((guarded_by(mutex))) = false;
  std::array<std::atomic<reactor*>, max_devices> all{};
};

reactor_table& reactors() {
  static auto* const table = new reactor_table;
  return *table;
}

} // namespace

reactor& reactor::of(gpumem::device device) {
  auto& table = reactors();
  auto& mine = table.all.at(static_cast<std::size_t>(device.ordinal()));
  if (auto* const made = mine.load(std::memory_order_acquire)) return *made;
  sync::lock const held{table.mutex};
  if (auto* const made = mine.load(std::memory_order_acquire)) return *made;
  auto* const made = new reactor{device};
  mine.store(made, std::memory_order_release);
  if (!std::exchange(table.stops_at_exit, true)) at_driver_exit(stop_all);
  return *made;
}

poll_queue& reactor::queue_of(stream_timeline const& timeline) {
  sync::lock const held{mutex_};
  return stream_queues_.try_emplace(&timeline, *this).first->second;
}

poll_queue& reactor::queue_of(CUevent event) {
  sync::lock const held{mutex_};
  return event_queues_.try_emplace(event, *this).first->second;
}

void reactor::start() {
  if (started_.load(std::memory_order_acquire)) return;
  sync::lock const held{mutex_};
  if (thread_.joinable() || stopping_) return;
  thread_ = sync::thread{[this] { run(); }};
  started_.store(true, std::memory_order_release);
}

void reactor::stop_all() noexcept {
  auto const deadline = sync::now() + exit_bound;
  for (auto& each : reactors().all) {
    if (auto* const one = each.load(std::memory_order_acquire)) one->stop(deadline);
  }
}

void reactor::stop(sync::time_point deadline) noexcept {
  sync::lock held{mutex_};
  stopping_ = true;
  if (!thread_.joinable()) return;
  wake_.notify_one();
  while (!ended_ && sync::now() < deadline) ended_wake_.wait_until(mutex_, deadline);
  bool const ended = ended_;
  held.unlock();
  if (ended) thread_.join();
}

// Moves the queue to the list where it belongs: none while it is polled or has no wait.
void reactor::enlist(poll_queue& item) noexcept {
  auto* const belongs = item.is_polled() || item.empty() ? nullptr : item.urgent() ? &low_latency_ : &balanced_;
  if (poll_queue_list::of(item) != belongs) poll_queue_list::move(item, belongs);
}

reactor::answer reactor::add_wait(pending_wait& point) noexcept {
  sync::lock const held{mutex_};
  if (point.stop_requested_.load(std::memory_order_acquire)) return answer::stopped;
  if (stopping_) return answer::ended;
  point.queue_->push(point);
  enlist(*point.queue_);
  ++armed_;
  fresh_ = true;
  bool const hurries = point.urgency_ == latency::low;
  if (sleep_ == sleep_kind::asleep || (sleep_ == sleep_kind::dozing && hurries)) wake_.notify_one();
  return answer::armed;
}

bool reactor::remove_wait(pending_wait& point) noexcept {
  sync::lock const held{mutex_};
  if (!point.armed_) return false;
  point.queue_->remove(point);
  enlist(*point.queue_);
  --armed_;
  return true;
}

void reactor::run() {
  pthread_setname_np(pthread_self(), ("gpumem-poll-" + std::to_string(device_.ordinal())).c_str());
  relaxed_capture const relaxed;
  sleep_precisely();
  sync::lock const held{mutex_};
  while (!stopping_) {
    if (armed_ == 0) {
      sleep_ = sleep_kind::asleep;
      wake_.wait(mutex_);
      sleep_ = sleep_kind::awake;
      continue;
    }
    round();
    if (armed_ > 0 && !stopping_) sleep();
  }
  ended_ = true;
  ended_wake_.notify_all();
}

void reactor::round() {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  auto const begin = sync::now();
  if (std::exchange(fresh_, false)) {
    quiet_since_ = begin;
    due_ = std::min(due_, begin + min_pause);
  }
  bool progress = poll(low_latency_);
  if (begin >= due_) {
    progress = poll(balanced_) || progress;
    auto const end = sync::now();
    if (progress) quiet_since_ = end;
    due_ = end + pause_after(end - begin, end - quiet_since_);
  } else if (progress) {
    quiet_since_ = sync::now();
  }
  if (device_.lost()) fail_all_lost();
}

// Polls each queue of the list once, 32 at a time, and queries the driver without the lock. Returns whether a wait was
// completed.
bool reactor::poll(poll_queue_list& queues) {
  bool progress = false;
  std::array<poll_request, batch_size> batch;
  for (auto left = queues.size(); left > 0 && !queues.empty();) {
    std::size_t count = 0;
    for (; count < batch_size && left > 0 && !queues.empty(); ++count, --left) {
      auto& next = *queues.first();
      batch[count] = next.begin_poll();
      enlist(next);
    }
    {
      sync::scoped_unlock const meanwhile{mutex_};
      for (std::size_t i = 0; i < count; ++i) query(batch[i]);
    }
    completed_waits completed;
    for (std::size_t i = 0; i < count; ++i) {
      batch[i].of->end_poll(batch[i], completed);
      enlist(*batch[i].of);
    }
    progress = deliver(completed) || progress;
  }
  return progress;
}

// Calls complete() on the waits. They are out of their queues, so remove_wait() fails for them, and a thread that
// destroys one of them waits until it is posted (suspension::take_back).
bool reactor::deliver(completed_waits& completed) noexcept {
  if (completed.empty()) return false;
  armed_ -= completed.size();
  sync::scoped_unlock const meanwhile{mutex_};
  while (auto* const point = completed.pop()) {
    publish(point->where_, point->result_);
    point->complete(device_.interpret(point->result_));
  }
  return true;
}

// On a lost device no event will ever be complete, so all waits end with its error.
void reactor::fail_all_lost() {
  completed_waits completed;
  for (auto* const list : {&low_latency_, &balanced_}) {
    while (auto* const next = list->first()) {
      next->fail_all(device_.lost_error(), completed);
      enlist(*next);
    }
  }
  deliver(completed);
}

void reactor::sleep() {
  auto const begin = sync::now();
  if (!low_latency_.empty()) { // releases the lock for a moment, so that other threads can take it
    bool const yields = begin - quiet_since_ > spin_before_yield;
    sync::scoped_unlock const meanwhile{mutex_};
    sync::schedule_point();
    if (yields) std::this_thread::yield();
    return;
  }
  if (begin >= due_) return;
  sleep_ = due_ - begin > 2 * min_pause ? sleep_kind::asleep : sleep_kind::dozing;
  wake_.wait_until(mutex_, due_);
  sleep_ = sleep_kind::awake;
}

} // namespace gpumem::detail

std::uint64_t gpumem::detail::completion_rounds(device where) {
  return detail::forked() ? 0 : detail::reactor::of(where).rounds();
}
