// Counts a stream's frees, numbers its epochs, and records and polls the events that end them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
module gpumem:stream_epochs.impl;
import :stream_epochs;
import :cuda;
import :device;
import :driver;
import :stream_identity;
import :sync;

namespace gpumem::detail {

void stream_epochs::publish_completed(epoch e) noexcept {
  auto seen = completed_.load(std::memory_order_relaxed);
  while (seen < e && !completed_.compare_exchange_weak(seen, e, std::memory_order_acq_rel)) {}
}

bool stream_epochs::count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept {
  auto const count = unrecorded_frees_.fetch_add(frees, std::memory_order_relaxed) + frees;
  auto const sum = unrecorded_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  return count >= tuning::frees_per_event || sum >= max_bytes;
}

void stream_epochs::reset_unrecorded() noexcept {
  unrecorded_frees_.store(0, std::memory_order_relaxed);
  unrecorded_bytes_.store(0, std::memory_order_relaxed);
}

// A free reads its epoch before it counts itself. So the event covers each free whose count is taken here, since the
// epoch is ended afterwards; a free that counts itself later stays counted.
//
// With `precise`, returns the number after the current epoch, which only frees of the calling thread get. Both numbers
// are ended in one step, so no other thread can have read the returned one. Otherwise a free of another thread could
// get it, and the event would also cover work that follows that free.
ended_epoch stream_epochs::end_epoch(bool precise) noexcept {
  auto const frees = uncovered_frees_.exchange(0, std::memory_order_relaxed);
  return {precise ? now_.fetch_add(2, std::memory_order_acq_rel) + 1 : advance(), frees};
}

void stream_epochs::covered(ended_epoch const& by_event) noexcept {
  auto const most = tuning::covered_frees_per_silent * tuning::max_silent_frees;
  auto const sum = std::min(covered_frees_.load(std::memory_order_relaxed) + by_event.frees, most);
  covered_frees_.store(sum, std::memory_order_relaxed);
  silent_frees_.store(sum / tuning::covered_frees_per_silent, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  recorded_.store(std::max(by_event.number, recorded_.load(std::memory_order_relaxed)), std::memory_order_release);
}

void stream_epochs::not_covered(ended_epoch const& failed) noexcept {
  uncovered_frees_.fetch_add(failed.frees, std::memory_order_relaxed);
}

// The number of frees that the event covered is not known: a count of 1 says that there are some.
void stream_epochs::lose_event(epoch newest) noexcept {
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  recorded_.store(std::max(newest, completed_.load(std::memory_order_relaxed)), std::memory_order_release);
}

void stream_epochs::restart() noexcept {
  publish_completed(advance());
  covered_frees_.store(0, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  forbid_silent();
  reset_unrecorded();
}

namespace {

// The spare events of all contexts, newest first. A plain list, since a process has few contexts.
struct event_store {
  sync::mutex mutex;
  pooled_event* spare GPUMEM_GUARDED_BY(mutex) = nullptr;
  int count GPUMEM_GUARDED_BY(mutex) = 0;

  void count_one(int change) noexcept GPUMEM_REQUIRES(mutex) {
    count += change;
    bool const few = count < tuning::spare_events;
    if (spares_low.load(std::memory_order_relaxed) != few) spares_low.store(few, std::memory_order_relaxed);
  }
};

// Takes no host memory, since noexcept functions call it.
event_store& events() noexcept {
  alignas(event_store) static std::byte place[sizeof(event_store)];
  static auto* const store = ::new (place) event_store;
  return *store;
}

pooled_event* create_event(CUcontext context, bool reused = true) {
  auto event = std::make_unique<pooled_event>(pooled_event{nullptr, context, nullptr, reused});
  context_guard const here{context};
  check(here.result(), "cuCtxPushCurrent");
  check(driver().event_create(&event->handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return event.release();
}

int count_spare_events(CUcontext context, int enough) noexcept {
  auto& store = events();
  sync::lock const lock{store.mutex};
  int found = 0;
  for (auto const* event = store.spare; event && found < enough; event = event->next)
    found += event->context == context;
  return found;
}

} // namespace

pooled_event* take_spare_event(CUcontext context) noexcept {
  auto& store = events();
  sync::lock const lock{store.mutex};
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

pooled_event* make_unrecorded_event(CUcontext context) { return create_event(context, false); }

void give_event(pooled_event* event) noexcept {
  if (!event->reused) {
    if (driver_alive()) driver().event_destroy(event->handle);
    delete event;
    return;
  }
  auto& store = events();
  sync::lock const lock{store.mutex};
  event->next = store.spare;
  store.spare = event;
  store.count_one(1);
}

void make_spare_events(CUcontext context) {
  for (int missing = tuning::spare_events - count_spare_events(context, tuning::spare_events); missing > 0; --missing) {
    give_event(create_event(context));
  }
}

pooled_event* event_ring::acquire() noexcept {
  if (spare_count_ == 0) return take_spare_event(stream_.context());
  --spare_count_;
  return std::exchange(spares_, spares_->next);
}

void event_ring::give_back(pooled_event* event) noexcept {
  if (spare_count_ == tuning::spare_events) return give_event(event);
  event->next = std::exchange(spares_, event);
  ++spare_count_;
}

// Ends the epoch before it records the event. So each free that has read the epoch's number comes before the event,
// as does the work on the freed block.
epoch event_ring::record(CUstream caller_handle, bool precise, request_flag& request, epoch in_last) noexcept {
  auto* const event = acquire();
  if (!event) return 0;
  if (size_ == max_events) retire_completed(in_last);
  // There is no room for another event while max_events events are not known to be complete. The request for an event
  // is dropped, and a stream that still needs one requests it again. With the request kept, each free of the stream
  // would call this function, and no freed block would stay in the thread cache, until the work ends.
  bool const full = size_ == max_events;
  auto const recording_stream = stream_.recorded_on(caller_handle);
  if (full) request.drop();
  if (full || stream_.captures(recording_stream)) {
    give_back(event);
    return 0;
  }
  request.drop(); // a request from here on means a later epoch
  auto const ended = epochs_.end_epoch(precise);
  // Another thread may have begun a capture on the stream meanwhile. The event then belongs to the capture, and a query
  // of the event would end the capture.
  auto const result = interpret(stream_.device(), driver().event_record(event->handle, recording_stream));
  if (result != CUDA_SUCCESS || stream_.captures(recording_stream)) {
    epochs_.not_covered(ended);
    give_back(event);
    return 0;
  }
  // Events of the null and legacy streams also cover work of other streams, so no stream may wait for them.
  bool const waitable = precise && stream_.kind() != stream_kind::null && stream_.kind() != stream_kind::legacy;
  at(size_++) = {ended.number, event, waitable, sync::now()};
  epochs_.covered(ended);
  epochs_.reset_unrecorded();
  return ended.number;
}

CUevent event_ring::find_waitable(epoch e) const noexcept {
  for (std::size_t i = 0; i < size_; ++i) {
    if (at(i).covers == e && at(i).waitable) return at(i).event->handle;
  }
  return nullptr;
}

std::optional<sync::time_point> event_ring::open_since() const noexcept {
  return size_ > 0 ? std::optional{at(0).recorded} : std::nullopt;
}

bool event_ring::complete(recorded_event const& event) noexcept {
  return driver().event_query(event.event->handle) == CUDA_SUCCESS;
}

// A stream completes its events in order: if the oldest one is complete, queries the newest one. If that one is
// complete too, all between are.
void event_ring::retire_completed(epoch in_last) noexcept {
  std::size_t complete_events = 0;
  epoch newest_complete = 0;
  bool captured = false;
  for (; complete_events < size_; ++complete_events) {
    auto const result = driver().event_query(at(complete_events).event->handle);
    if (result == CUDA_SUCCESS) newest_complete = at(complete_events).covers;
    if (result == CUDA_SUCCESS && complete_events == 0 && size_ > 2 && complete(at(size_ - 1))) {
      newest_complete = newest();
      complete_events = size_;
      break;
    }
    // The event belongs to a capture that began and ended during its record, so it covers nothing.
    if (result == CUDA_ERROR_CAPTURED_EVENT) captured = true;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_CAPTURED_EVENT) continue;
    // An error does not mean "complete": if the device is lost, none of its memory is reused.
    interpret(stream_.device(), result);
    break;
  }
  if (complete_events == 0) return;
  epochs_.publish_completed(newest_complete);
  for (std::size_t i = 0; i < complete_events; ++i) give_back(at(i).event);
  first_ = (first_ + complete_events) % max_events;
  size_ -= complete_events;
  if (captured) epochs_.lose_event(std::max(newest(), in_last));
}

epoch last_event::record(CUstream caller_handle, epoch in_ring) noexcept {
  auto const recording_stream = stream_.recorded_on(caller_handle);
  if (!event_ || stream_.captures(recording_stream)) return 0;
  auto const ended = epochs_.end_epoch();
  auto const result = interpret(stream_.device(), driver().event_record(event_->handle, recording_stream));
  if (result != CUDA_SUCCESS || stream_.captures(recording_stream)) {
    epochs_.not_covered(ended);
    // If the record succeeded, another thread has begun a capture meanwhile, and the event belongs to that capture now.
    // If the record failed, the event still covers the frees that it covered before.
    if (result == CUDA_SUCCESS) lose(in_ring);
    return 0;
  }
  open_ = true;
  covers_ = ended.number;
  recorded_ = sync::now();
  epochs_.covered(ended);
  return covers_;
}

void last_event::poll(epoch in_ring) noexcept {
  if (!open_) return;
  auto const result = interpret(stream_.device(), driver().event_query(event_->handle));
  if (result == CUDA_ERROR_NOT_READY || lost_error_of(stream_.device()) != CUDA_SUCCESS) return;
  open_ = false;
  if (result == CUDA_SUCCESS) return epochs_.publish_completed(covers_);
  lose(in_ring);
}

void last_event::lose(epoch in_ring) noexcept {
  open_ = false;
  epochs_.lose_event(in_ring);
}

std::optional<sync::time_point> last_event::open_since() const noexcept {
  return open_ ? std::optional{recorded_} : std::nullopt;
}

} // namespace gpumem::detail
