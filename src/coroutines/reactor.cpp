// Polls the driver for waits, and resumes those that are over.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <utility>
module gpumem:reactor.impl;
import :reactor;
import :cuda;
import :device;
import :driver;
import :event;
import :executor;
import :process;
import :stream_timeline;
import :sync;
import :timer;

namespace gpumem::detail {

void completed_waits::push(pending_wait& point, CUresult result) noexcept {
  point.result_ = result;
  waits_.push_back(point);
  ++size_;
}

pending_wait* completed_waits::pop() noexcept {
  auto* const point = waits_.first();
  if (!point) return nullptr;
  waits_.remove(*point);
  --size_;
  return point;
}

void poll_queue::push(pending_wait& point) noexcept {
  point.armed_ = true;
  waits_.push_back(point);
  if (point.urgency_ == latency::low) ++urgent_waits_;
}

void poll_queue::remove(pending_wait& point) noexcept {
  waits_.remove(point);
  point.armed_ = false;
  if (point.urgency_ == latency::low) --urgent_waits_;
  if (polled_oldest_ == &point) polled_oldest_ = nullptr;
  if (polled_newest_ == &point) polled_newest_ = nullptr;
}

poll_request poll_queue::begin_poll() noexcept {
  polled_oldest_ = waits_.first();
  polled_newest_ = waits_.last();
  return {this, polled_oldest_->point_.event, polled_newest_->point_.event};
}

// If the newest event is complete, all events before it are complete too. An error goes only to the oldest wait.
bool poll_queue::end_poll(poll_request const& request, completed_waits& completed) noexcept {
  auto* const oldest = std::exchange(polled_oldest_, nullptr);
  auto* const newest = std::exchange(polled_newest_, nullptr);
  if (newest && request.newest_result == CUDA_SUCCESS) {
    for (pending_wait* point = nullptr; point != newest;) {
      point = waits_.first();
      remove(*point);
      completed.push(*point, CUDA_SUCCESS);
    }
    return true;
  }
  if (!oldest || request.oldest_result == CUDA_ERROR_NOT_READY) return false;
  remove(*oldest);
  completed.push(*oldest, request.oldest_result);
  return true;
}

void poll_queue::fail_all(CUresult result, completed_waits& completed) noexcept {
  while (auto* const point = waits_.first()) {
    remove(*point);
    completed.push(*point, result);
  }
}

void poll_queue_list::move(poll_queue& item, poll_queue_list* list) noexcept {
  if (auto* const from = std::exchange(item.listed_in_, list)) {
    if (from->next_ == &item) from->next_ = item.links_.next;
    from->queues_.remove(item);
    --from->size_;
  }
  if (list) {
    list->queues_.push_back(item);
    ++list->size_;
  }
}

poll_queue& poll_queue_list::next_in_turn() noexcept {
  auto& item = next_ ? *next_ : *queues_.first();
  next_ = item.links_.next;
  return item;
}

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

inline constexpr auto exit_bound = std::chrono::seconds{1};
inline constexpr auto min_pause = microseconds{10};
inline constexpr auto max_extra_pause = microseconds{50};
inline constexpr auto max_pause = microseconds{100};
inline constexpr auto max_first_pause = microseconds{50};
inline constexpr auto memory = std::chrono::seconds{1};    // quiet time after which add_wait() forgets `lasted_`
inline constexpr auto pause_cost = microseconds{6};        // processor time of falling asleep and waking up
inline constexpr auto spin_before_yield = milliseconds{1}; // time without a completion after which a spin yields
// A poll of the oldest waits ends after this number of queues in a row that have no complete wait.
inline constexpr std::size_t max_misses = 4;

// Returns the shortest pause after a poll that has spent this time on waits that are not complete, 10 to 100 us. The
// pause limits such polls to 1/4 of a core, unless one takes over 25 us.
sync::duration fair_pause(sync::duration busy) noexcept {
  return std::clamp<sync::duration>((busy + pause_cost) * 4, min_pause, max_pause);
}

// Returns a pause of 1/32 of the time since the last completion, at most 50 us. It adds 3 % to the latency of a long
// wait.
sync::duration long_pause(sync::duration quiet) noexcept {
  return std::min<sync::duration>(quiet / 32, max_extra_pause);
}

void query(poll_request& request) {
  auto const& ask = driver().event_query;
  request.oldest_result = ask(request.oldest);
  if (request.oldest == request.newest) {
    request.newest_result = request.oldest_result;
  } else if (request.oldest_result == CUDA_SUCCESS) {
    request.newest_result = ask(request.newest);
  }
}

// Marks a complete event in its stream's timeline. Pools read there which work is complete.
void publish(stream_point const& point, CUresult result) noexcept {
  if (result == CUDA_SUCCESS && point.timeline) point.timeline->epochs().publish_completed(point.covers);
}

inline constexpr std::size_t max_devices = 64;

struct reactor_table {
  sync::mutex mutex;
  bool stops_at_exit GPUMEM_GUARDED_BY(mutex) = false;
  bool stopped GPUMEM_GUARDED_BY(mutex) = false; // no reactor may be made any more: stop_all() has run
  std::array<std::string, max_devices> names GPUMEM_GUARDED_BY(mutex); // of reactor threads
  // For each device, one reactor on the library thread and one on a thread of its own.
  std::array<std::atomic<reactor*>, 2 * max_devices> all{};
};

reactor_table& reactors() {
  static auto* const table = new reactor_table;
  return *table;
}

} // namespace

reactor& reactor::of(gpumem::device device, executor const& resumes) {
  auto& table = reactors();
  auto* const library = running_library_thread();
  bool const on_other_thread = &resumes != library;
  auto const number = static_cast<std::size_t>(device.ordinal());
  auto& reactor_slot = table.all.at(2 * number + on_other_thread);
  if (auto* const made = reactor_slot.load(std::memory_order_acquire)) return *made;
  sync::lock const lock{table.mutex};
  if (auto* const made = reactor_slot.load(std::memory_order_acquire)) return *made;
  if (table.stopped) check(CUDA_ERROR_DEINITIALIZED, "gpumem: waiting for the device");
  auto& name = table.names[number];
  if (on_other_thread) name = "gpumem-poll-" + std::to_string(number);
  auto* const made = new reactor{device, on_other_thread ? *new executor_thread{name.c_str()} : *library};
  reactor_slot.store(made, std::memory_order_release);
  if (!std::exchange(table.stops_at_exit, true)) at_driver_exit(stop_all);
  return *made;
}

std::uint64_t reactor::rounds_of(gpumem::device device) noexcept {
  std::uint64_t sum = 0;
  for (auto i : {0, 1}) {
    auto const* const one = reactors().all[static_cast<std::size_t>(2 * device.ordinal() + i)].load();
    if (one) sum += one->rounds_.load(std::memory_order_relaxed);
  }
  return sum;
}

poll_queue& reactor::queue_of(stream_timeline const& timeline) {
  sync::spin_lock const lock{mutex_};
  return stream_queues_.try_emplace(&timeline, *this).first->second;
}

poll_queue& reactor::queue_of(CUevent event) {
  sync::spin_lock const lock{mutex_};
  return event_queues_.try_emplace(event, *this).first->second;
}

// Runs at the exit of the process. Stops all reactors and, within a second, the threads that belong to them. The
// library thread stops by itself.
void reactor::stop_all() noexcept {
  auto const deadline = sync::now() + exit_bound;
  {
    sync::lock const lock{reactors().mutex};
    reactors().stopped = true;
  }
  for (std::size_t i = 0; i < reactors().all.size(); ++i) {
    auto* const one = reactors().all[i].load(std::memory_order_acquire);
    if (!one) continue;
    {
      sync::spin_lock const lock{one->mutex_};
      one->stopping_ = true;
    }
    if (i % 2 == 1) one->home_.stop_within(std::max(deadline - sync::now(), sync::duration::zero()));
  }
}

// Moves the queue to the list where it belongs: `low_latency_` if a wait of it is urgent, otherwise `balanced_`. While
// the queue has no wait, it is in no list.
void reactor::enlist(poll_queue& item) noexcept {
  auto* const belongs = item.empty() ? nullptr : item.urgent() ? &low_latency_ : &balanced_;
  if (poll_queue_list::of(item) != belongs) poll_queue_list::move(item, belongs);
}

// Adds a wait. Its first pause is 7/8 of `lasted_`, the quiet time before the last completion, but 10 to 50 us.
reactor::answer reactor::add_wait(pending_wait& point) noexcept {
  sync::spin_lock const lock{mutex_};
  if (point.stop_requested_.load(std::memory_order_acquire)) return answer::stopped;
  if (stopping_) return answer::ended;
  auto const now = sync::now();
  if (now - std::exchange(quiet_since_, now) > memory) lasted_ = {};
  auto const soon = now + std::clamp<sync::duration>(lasted_ * 7 / 8, min_pause, max_first_pause);
  soon_ = std::min(soon_, soon);
  due_ = std::max(fair_, balanced_.empty() ? soon : std::min(due_, soon));
  point.queue_->push(point);
  enlist(*point.queue_);
  ++armed_;
  ++added_;
  schedule(low_latency_.empty() ? due_ : now);
  return answer::armed;
}

bool reactor::remove_wait(pending_wait& point) noexcept {
  sync::spin_lock const lock{mutex_};
  if (!point.armed_) return false;
  point.queue_->remove(point);
  enlist(*point.queue_);
  --armed_;
  return true;
}

// Makes the next round begin at `deadline`, unless it begins earlier. Does nothing while a round runs: that round
// schedules the next one at its end.
void reactor::schedule(sync::time_point deadline) noexcept {
  if (deadline >= next_) return;
  if (next_ != sync::time_point::max() && !home_.try_cancel(*this)) return; // too late to cancel: the round begins now
  next_ = deadline;
  home_.start(*this, deadline);
}

// Runs one polling round and schedules the next. With Linux's default timer slack a sleep lasts up to 50 us longer. The
// slack is set to 1 ns on the polling threads only, because a thread passes it on to the threads that it starts.
void reactor::expire() noexcept {
  [[maybe_unused]] thread_local int const set = prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  auto const begin = sync::now();
  bool yields = false;
  {
    sync::spin_lock const lock{mutex_};
    if (armed_ == 0) {
      next_ = sync::time_point::max();
      return;
    }
    next_ = sync::time_point::min();
    round(begin);
    next_ = sync::time_point::max();
    if (armed_ == 0 || stopping_) return;
    bool const spins = !low_latency_.empty();
    yields = spins && begin - quiet_since_ > spin_before_yield;
    schedule(spins ? begin : due_);
  }
  if (yields) std::this_thread::yield();
}

void reactor::round(sync::time_point begin) {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  if (notice_reset(device_.ordinal())) return fail_all_lost();
  bool const due = begin >= due_;
  auto const quiet_since = quiet_since_; // waits that are added during poll() change the member
  if (due) {
    soon_ = sync::time_point::max();
    added_ = 0;
  }
  auto answers = poll(low_latency_);
  if (due) answers.add(poll(balanced_));
  bool const progress = answers.complete > 0;
  if (due || progress) {
    auto const end = sync::now();
    if (progress) {
      lasted_ = end - quiet_since;
      quiet_since_ = end;
    }
    auto const vain = (end - begin) * (answers.asked - answers.complete) / std::max<std::size_t>(answers.asked, 1);
    if (due) set_due(end, vain, progress ? sync::duration::zero() : end - quiet_since);
  }
  if (device_.lost()) fail_all_lost();
}

// Sets the time of the next poll of the queues without an urgent wait. If all waits that are left were added during
// this poll, the next poll comes at the end of their first pause.
void reactor::set_due(sync::time_point end, sync::duration busy, sync::duration quiet) noexcept {
  fair_ = end + fair_pause(busy);
  auto const regular = armed_ > added_ ? end + long_pause(quiet) : sync::time_point::max();
  due_ = std::max(fair_, std::min(regular, soon_));
}

// Polls the queues with the oldest waits first, since waits mostly complete in the order in which they began. Goes on
// until `max_misses` queues in a row have no complete wait. Then polls some others in turn.
reactor::answers reactor::poll(poll_queue_list& queues) {
  std::array<poll_request, batch_size> batch;
  bool const few = queues.size() <= 2 * max_misses;
  answers sum;
  for (auto left = queues.size(); left > 0;) {
    std::size_t count = 0;
    for (auto* at = queues.first(); at && count < std::min(left, batch_size); at = poll_queue_list::after(*at))
      batch[count++] = at->begin_poll();
    auto const seen = ask({batch.data(), count}, few ? count : max_misses);
    sum.add(seen);
    if (seen.asked < batch_size || seen.complete == 0) break;
    left -= seen.asked;
  }
  if (few) return sum;
  answers in_turn;
  for (auto left = queues.in_turn(); left > 0 && !queues.empty();) {
    auto const count = std::min({left, batch_size, queues.size()});
    for (std::size_t i = 0; i < count; ++i) batch[i] = queues.next_in_turn().begin_poll();
    in_turn.add(ask({batch.data(), count}, count));
    left -= count;
  }
  queues.note_in_turn(in_turn.complete > 0);
  sum.add(in_turn);
  return sum;
}

// Queries the driver without the lock, until `max_misses` queues in a row have no complete wait. Then completes the
// waits that are over.
reactor::answers reactor::ask(std::span<poll_request> batch, std::size_t max_misses) {
  answers sum;
  {
    sync::scoped_unlock const meanwhile{mutex_};
    relaxed_capture const relaxed;
    for (std::size_t misses = 0; sum.asked < batch.size() && misses < max_misses; ++sum.asked) {
      query(batch[sum.asked]);
      misses = batch[sum.asked].oldest_result == CUDA_ERROR_NOT_READY ? misses + 1 : 0;
    }
  }
  completed_waits completed;
  for (auto const& each : batch) {
    bool const over = each.of->end_poll(each, completed);
    sum.complete += over;
    if (over && !each.of->empty()) poll_queue_list::move(*each.of, nullptr); // its oldest wait is a younger one now
    enlist(*each.of);
  }
  deliver(completed);
  return sum;
}

// Calls complete() on the waits, without the lock. The waits are in no queue any more, so remove_wait() returns false
// for them. A thread that destroys one of them blocks in suspension::take_back() until complete() has posted it.
void reactor::deliver(completed_waits& completed) noexcept {
  if (completed.empty()) return;
  armed_ -= completed.size();
  sync::scoped_unlock const meanwhile{mutex_};
  while (auto* const point = completed.pop()) {
    publish(point->point_, point->result_);
    point->complete(device_.interpret(point->result_));
  }
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

} // namespace gpumem::detail

std::uint64_t gpumem::detail::completion_rounds(device device) noexcept {
  return detail::forked() ? 0 : detail::reactor::rounds_of(device);
}
