// Timelines of streams: epochs, events and orders.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:stream_timeline.impl;
import :stream_timeline;
import :cuda;
import :device;
import :driver;
import :sync;
import :tuning;

namespace gpumem::detail {
namespace {

// The spare events of all contexts, newest first. A plain list, since a process has few contexts.
struct event_store {
  sync::mutex mutex;
  pooled_event* spare __attribute__((guarded_by(mutex))) = nullptr;
  int count __attribute__((guarded_by(mutex))) = 0;

  void count_one(int change) noexcept __attribute__((requires_capability(mutex))) {
    count += change;
    bool const few = count < tuning::spare_events;
    if (spares_low.load(std::memory_order_relaxed) != few) spares_low.store(few, std::memory_order_relaxed);
  }
};

event_store& events() {
  static auto* const store = new event_store;
  return *store;
}

pooled_event* create_event(CUcontext context) {
  auto event = std::make_unique<pooled_event>(pooled_event{nullptr, context, nullptr});
  context_guard const here{context};
  check(here.result(), "cuCtxPushCurrent");
  check(driver().event_create(&event->handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return event.release();
}

int count_spare_events(CUcontext context, int enough) noexcept {
  auto& store = events();
  sync::lock const held{store.mutex};
  int found = 0;
  for (auto const* event = store.spare; event && found < enough; event = event->next)
    found += event->context == context;
  return found;
}

} // namespace

epoch vector_clock::at(std::uint32_t index) const noexcept {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  return found != entries_.end() && found->index == index ? found->newest : 0;
}

void vector_clock::raise(std::uint32_t index, epoch newest) {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  if (found != entries_.end() && found->index == index) {
    found->newest = std::max(found->newest, newest);
  } else {
    entries_.insert(found, {index, newest});
  }
}

void vector_clock::join(vector_clock const& other) {
  for (auto const& e : other.entries_) raise(e.index, e.newest);
}

pooled_event* take_spare_event(CUcontext context) noexcept {
  auto& store = events();
  sync::lock const held{store.mutex};
  for (auto** link = &store.spare; *link; link = &(*link)->next) {
    if ((*link)->context != context) continue;
    auto* const event = *link;
    *link = event->next;
    event->next = nullptr;
    store.count_one(-1);
    return event;
  }
  return nullptr;
}

pooled_event* take_event(CUcontext context) {
  auto* const spare = take_spare_event(context);
  return spare ? spare : create_event(context);
}

void give_event(pooled_event* event) noexcept {
  auto& store = events();
  sync::lock const held{store.mutex};
  event->next = store.spare;
  store.spare = event;
  store.count_one(1);
}

stream_timeline::stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                                 CUstream handle, pooled_event* last)
    : kind_{kind}, index_{index}, id_{id}, device_{device}, context_{context}, last_event_{last}, handle_{handle},
      completed_{kind == stream_kind::host ? ~epoch{0} : 0}, prepared_{kind == stream_kind::host} {}

void stream_timeline::adopt(bool promised) noexcept {
  if (kind() == stream_kind::own) return;
  sync::lock const held{events_mutex_}; // when the promise ends, no other thread is using the handle in record()
  adoptions_ += promised ? 1 : -1;
  kind_.store(adoptions_ > 0 ? stream_kind::adopted : stream_kind::foreign, std::memory_order_relaxed);
}

bool stream_timeline::ordered_after(stream_timeline const& other, epoch e) const {
  if (this == &other) return true;
  sync::lock const held{clock_mutex_};
  return clock_.at(other.index_) >= e;
}

// Makes spare events, since events are recorded inside frees, which allocate nothing. It makes only as many as are
// missing: streams come and go while events stay. It counts each time, since other streams take events as well.
void stream_timeline::prepare_events() {
  if (kind() == stream_kind::host) return;
  prepared_.store(true, std::memory_order_relaxed);
  for (int missing = tuning::spare_events - count_spare_events(context_, tuning::spare_events); missing > 0;
       --missing) {
    give_event(create_event(context_));
  }
}

pooled_event* stream_timeline::acquire_event() noexcept {
  if (own_event_count_ <= 1) prepared_.store(false, std::memory_order_relaxed);
  if (own_event_count_ == 0) return take_spare_event(context_);
  --own_event_count_;
  return std::exchange(own_events_, own_events_->next);
}

void stream_timeline::return_event(pooled_event* event) noexcept {
  if (own_event_count_ == tuning::spare_events) return give_event(event);
  event->next = std::exchange(own_events_, event);
  ++own_event_count_;
}

bool stream_timeline::captures(CUstream caller_handle) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const answer = interpret(device_, driver().stream_is_capturing(caller_handle, &status));
  return answer != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Closes the epoch before it records the event: all work before a free in that epoch was enqueued before the record.
epoch stream_timeline::record(CUstream handle, bool precise, bool promised) noexcept {
  if (kind() == stream_kind::host || !driver_alive() || lost_error_of(device_) != CUDA_SUCCESS) return 0;
  relaxed_capture const relaxed;
  sync::lock const held{events_mutex_};
  if (promised && !owns_handle()) return 0;
  auto* const event = acquire_event();
  if (!event) return 0;
  if (size_ == max_events) retire_completed();
  // There is no room for another while max_events are open. The request is dropped, and a stream that still needs an
  // event requests it again. Otherwise each free of the stream would come here until its work ends, and none would stay
  // in the thread cache.
  bool const full = size_ == max_events;
  auto const on = recorded_on(handle);
  if (full) event_requested_.store(false, std::memory_order_relaxed);
  if (full || captures(on)) {
    return_event(event);
    return 0;
  }
  event_requested_.store(false, std::memory_order_relaxed); // a request from here on means a later epoch
  auto const uncovered = uncovered_frees_.exchange(0, std::memory_order_relaxed);
  // No other thread can have read a precise epoch: what other threads free on the stream meanwhile may come before work
  // that this event covers.
  auto const covers = precise ? now_.fetch_add(2, std::memory_order_acq_rel) + 1 : advance_epoch();
  // Another thread may have begun a capture meanwhile, which a query of its event would end.
  auto const result = interpret(device_, driver().event_record(event->handle, on));
  if (result != CUDA_SUCCESS || captures(on)) {
    uncovered_frees_.fetch_add(uncovered, std::memory_order_relaxed);
    return_event(event);
    return 0;
  }
  count_covered(uncovered);
  // Events of the null and legacy streams also cover work of other streams, so no stream may wait for them.
  bool const waitable = precise && kind() != stream_kind::null && kind() != stream_kind::legacy;
  at(size_++) = {covers, event, waitable, sync::now()};
  raise_recorded(covers);
  unrecorded_frees_.store(0, std::memory_order_relaxed);
  unrecorded_bytes_.store(0, std::memory_order_relaxed);
  return covers;
}

bool stream_timeline::count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept {
  auto const count = unrecorded_frees_.fetch_add(frees, std::memory_order_relaxed) + frees;
  auto const sum = unrecorded_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  return count >= tuning::frees_per_event || sum >= max_bytes;
}

bool stream_timeline::waitable(epoch e) const noexcept {
  sync::lock const held{events_mutex_};
  return find_waitable(e) != nullptr;
}

stream_timeline::recorded_event const* stream_timeline::find_waitable(epoch e) const noexcept {
  for (std::size_t i = 0; i < size_; ++i) {
    if (at(i).covers == e && at(i).waitable) return &at(i);
  }
  return nullptr;
}

bool stream_timeline::has_event() const noexcept {
  sync::lock const held{events_mutex_};
  return size_ > 0 || last_open_;
}

bool stream_timeline::complete(recorded_event const& one) noexcept {
  return driver().event_query(one.event->handle) == CUDA_SUCCESS;
}

std::optional<sync::time_point> stream_timeline::poll() noexcept {
  if (!driver_alive() || lost_error_of(device_) != CUDA_SUCCESS) return std::nullopt;
  if (!events_mutex_.try_lock()) return std::nullopt;
  sync::lock const held{events_mutex_, std::adopt_lock};
  if (size_ == 0 && !last_open_) return std::nullopt;
  relaxed_capture const relaxed;
  // A recent event says nothing about the stream's work: even a stream without work takes 2 us to complete one.
  auto const long_ago = sync::now() - tuning::behind_after;
  bool const tells = size_ > 0 && at(0).recorded < long_ago;
  retire_completed();
  poll_last();
  bool const none = size_ == 0 && !last_open_;
  if (tells || none) behind_.store(size_ > 0 && at(0).recorded < long_ago, std::memory_order_relaxed);
  if (size_ > 0) return at(0).recorded;
  return last_open_ ? std::optional{last_recorded_} : std::nullopt;
}

// A stream completes its events in order: if the oldest is complete, asks the newest, which speaks for all between.
void stream_timeline::retire_completed() noexcept {
  std::size_t done = 0;
  epoch seen = 0;
  bool captured = false;
  for (; done < size_; ++done) {
    auto const result = driver().event_query(at(done).event->handle);
    if (result == CUDA_SUCCESS) seen = at(done).covers;
    if (result == CUDA_SUCCESS && done == 0 && size_ > 2 && complete(at(size_ - 1))) {
      seen = at(size_ - 1).covers;
      done = size_;
      break;
    }
    // The event belongs to a capture that began and ended during its record, so it covers nothing.
    if (result == CUDA_ERROR_CAPTURED_EVENT) captured = true;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_CAPTURED_EVENT) continue;
    // An error does not mean "complete": if the device is lost, none of its memory is reused.
    interpret(device_, result);
    break;
  }
  if (done == 0) return;
  if (captured) uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  publish_completed(seen);
  for (std::size_t i = 0; i < done; ++i) return_event(at(i).event);
  first_ = (first_ + done) % max_events;
  size_ -= done;
  if (!captured) return;
  auto const rest = std::max(size_ > 0 ? at(size_ - 1).covers : seen, last_open_ ? last_covers_ : 0);
  recorded_.store(rest, std::memory_order_release);
}

void stream_timeline::publish_completed(epoch e) noexcept {
  auto seen = completed_.load(std::memory_order_relaxed);
  while (seen < e && !completed_.compare_exchange_weak(seen, e, std::memory_order_acq_rel)) {}
}

// A wait on handle 0 would be a wait on the legacy stream: a barrier between all blocking streams.
bool stream_timeline::insert_wait(stream_timeline& waiting, CUstream caller_handle, epoch e) noexcept {
  if (waiting.kind() == stream_kind::null) return false;
  {
    sync::lock const held{events_mutex_};
    auto const* const found = find_waitable(e);
    if (!found) return false;
    relaxed_capture const relaxed;
    if (waiting.captures(caller_handle)) return false; // the wait would end a capture that was begun on the handle
    if (driver().stream_wait_event(caller_handle, found->event->handle, 0) != CUDA_SUCCESS) return false;
  }
  try {
    waiting.add_dependency(index_, e, {});
  } catch (...) {
    return false; // the driver has the wait; only the note of the order is lost
  }
  return true;
}

void stream_timeline::add_dependency(std::uint32_t index, epoch e, vector_clock const& before) {
  sync::lock const held{clock_mutex_};
  clock_.join(before);
  clock_.raise(index, e);
}

vector_clock stream_timeline::snapshot() const {
  sync::lock const held{clock_mutex_};
  return clock_;
}

} // namespace gpumem::detail
