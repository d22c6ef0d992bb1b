// The reactor's thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <sys/prctl.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
module gpumem:reactor.impl;
import :reactor;
import :cuda;
import :device;
import :driver;
import :event;
import :fork;
import :lane;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

inline constexpr auto exit_bound = std::chrono::seconds{1};
inline constexpr auto shortest_pause = microseconds{10};
inline constexpr auto most_patience = microseconds{50};
inline constexpr auto longest_pause = microseconds{100};
inline constexpr auto cost_of_a_pause = microseconds{2}; // to fall asleep and to wake up
inline constexpr auto selfish_time = milliseconds{1};    // of spinning, before others are let by

// Four times what the questions took, so that the thread is busy for a fifth of the time; and a 32nd of what has been
// waited for in vain, which nobody who waits that long will miss.
sync::duration pause_after(sync::duration busy, sync::duration quiet) noexcept {
  auto const fair = (busy + cost_of_a_pause) * 4;
  auto const patient = std::min<sync::duration>(quiet / 32, most_patience);
  return std::clamp<sync::duration>(std::max(fair, patient), shortest_pause, longest_pause);
}

// Sleeps of some microseconds would else last 50 longer.
void sleep_precisely() noexcept { prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); }

void query(lane_question& question) {
  auto const& ask = driver().event_query;
  question.oldest_result = ask(question.oldest);
  if (question.oldest == question.newest) {
    question.newest_result = question.oldest_result;
  } else if (question.oldest_result == CUDA_SUCCESS) {
    question.newest_result = ask(question.newest);
  }
}

// What the answer for one event tells everybody else.
void publish(stream_point const& where, CUresult result) noexcept {
  if (result == CUDA_SUCCESS && where.order) where.order->publish_completed(where.covers);
}

inline constexpr std::size_t most_devices = 64;

struct reactor_table {
  sync::mutex guard;
  bool stops_at_exit = false;
  std::array<std::atomic<reactor*>, most_devices> all{};
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
  sync::lock const held{table.guard};
  if (auto* const made = mine.load(std::memory_order_acquire)) return *made;
  auto* const made = new reactor{device};
  mine.store(made, std::memory_order_release);
  if (!std::exchange(table.stops_at_exit, true)) at_driver_exit(stop_all);
  return *made;
}

lane& reactor::lane_of(timeline const& order) {
  sync::lock const held{guard_};
  return stream_lanes_.try_emplace(&order, *this).first->second;
}

lane& reactor::lane_of(CUevent event) {
  sync::lock const held{guard_};
  return event_lanes_.try_emplace(event, *this).first->second;
}

void reactor::start() {
  if (started_.load(std::memory_order_acquire)) return;
  sync::lock const held{guard_};
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
  sync::lock held{guard_};
  stopping_ = true;
  if (!thread_.joinable()) return;
  wake_.notify_one();
  while (!ended_ && sync::now() < deadline) ended_wake_.wait_until(held, deadline);
  bool const ended = ended_;
  held.unlock();
  if (ended) thread_.join();
}

// Puts the lane into the list where it belongs; one that is being asked comes back with its answer.
void reactor::place(lane& item) noexcept {
  auto* const belongs = item.asked() || item.empty() ? nullptr : item.urgent() ? &urgent_ : &patient_;
  if (lane_list::of(item) != belongs) lane_list::move(item, belongs);
}

reactor::answer reactor::arm(armed_point& point) noexcept {
  sync::lock const held{guard_};
  if (point.stop_requested_.load(std::memory_order_acquire)) return answer::stopped;
  if (stopping_) return answer::ended;
  point.lane_->push(point);
  place(*point.lane_);
  ++armed_;
  fresh_ = true;
  bool const hurries = point.urgency_ == latency::low;
  if (rest_ == rest_kind::asleep || (rest_ == rest_kind::dozing && hurries)) wake_.notify_one();
  return answer::armed;
}

bool reactor::disarm(armed_point& point) noexcept {
  sync::lock const held{guard_};
  if (!point.armed_) return false;
  point.lane_->remove(point);
  place(*point.lane_);
  --armed_;
  return true;
}

void reactor::run() {
  relaxed_capture const relaxed;
  sleep_precisely();
  sync::lock held{guard_};
  while (!stopping_) {
    if (armed_ == 0) {
      rest_ = rest_kind::asleep;
      wake_.wait(held);
      rest_ = rest_kind::awake;
      continue;
    }
    round(held);
    if (armed_ > 0 && !stopping_) rest(held);
  }
  ended_ = true;
  ended_wake_.notify_all();
}

void reactor::round(sync::lock& held) {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  auto const begin = sync::now();
  if (std::exchange(fresh_, false)) {
    quiet_since_ = begin;
    due_ = std::min(due_, begin + shortest_pause);
  }
  bool progress = ask(urgent_, held);
  if (begin >= due_) {
    progress = ask(patient_, held) || progress;
    auto const end = sync::now();
    if (progress) quiet_since_ = end;
    due_ = end + pause_after(end - begin, end - quiet_since_);
  } else if (progress) {
    quiet_since_ = sync::now();
  }
  if (device_.lost()) tell_of_loss(held);
}

// Asks each lane of the list once, some at a time and without the lock; whether anybody was told.
bool reactor::ask(lane_list& lanes, sync::lock& held) {
  bool progress = false;
  std::array<lane_question, batch_size> batch;
  for (auto left = lanes.size(); left > 0 && !lanes.empty();) {
    std::size_t count = 0;
    for (; count < batch_size && left > 0 && !lanes.empty(); ++count, --left) {
      auto& next = *lanes.first();
      batch[count] = next.ask();
      place(next);
    }
    held.unlock();
    for (std::size_t i = 0; i < count; ++i) query(batch[i]);
    held.lock();
    told_points told;
    for (std::size_t i = 0; i < count; ++i) {
      batch[i].of->answer(batch[i], told);
      place(*batch[i].of);
    }
    progress = deliver(told, held) || progress;
  }
  return progress;
}

// They are armed no more: whoever would destroy one now waits until it is posted.
bool reactor::deliver(told_points& told, sync::lock& held) noexcept {
  if (told.empty()) return false;
  armed_ -= told.size();
  held.unlock();
  while (auto* const point = told.pop()) {
    publish(point->where_, point->result_);
    point->reached(device_.judge(point->result_));
  }
  held.lock();
  return true;
}

// The context is gone, and no event of it will ever be complete.
void reactor::tell_of_loss(sync::lock& held) {
  told_points told;
  for (auto* const list : {&urgent_, &patient_}) {
    while (auto* const next = list->first()) {
      next->tell_all(device_.loss(), told);
      place(*next);
    }
  }
  deliver(told, held);
}

void reactor::rest(sync::lock& held) {
  auto const begin = sync::now();
  if (!urgent_.empty()) { // only lets others have the lock
    held.unlock();
    sync::mark();
    if (begin - quiet_since_ > selfish_time) std::this_thread::yield();
    held.lock();
    return;
  }
  if (begin >= due_) return;
  rest_ = due_ - begin > 2 * shortest_pause ? rest_kind::asleep : rest_kind::dozing;
  wake_.wait_until(held, due_);
  rest_ = rest_kind::awake;
}

} // namespace gpumem::detail

std::uint64_t gpumem::completion_rounds(device where) {
  return detail::forked() ? 0 : detail::reactor::of(where).rounds();
}
