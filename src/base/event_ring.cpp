// Records and queries the events of one stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
module gpumem:event_ring.impl;
import :event_ring;
import :cuda;
import :device;
import :driver;
import :pooled_event;
import :stream_epochs;
import :stream_identity;
import :sync;
import :tuning;

namespace gpumem::detail {

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

// Closes the epoch before it records the event. So each free that has read the epoch's number comes before the event,
// as does the work on the freed block.
epoch event_ring::record(CUstream caller_handle, bool precise, request_flag& request, epoch in_last) noexcept {
  auto* const event = acquire();
  if (!event) return 0;
  if (size_ == max_events) retire_completed(in_last);
  // There is no room for another event while max_events events are not known to be complete. The request for an event
  // is dropped, and a stream that still needs one requests it again. With the request kept, each free of the stream
  // would call this function, and no freed block would stay in the thread cache, until the work ends.
  bool const full = size_ == max_events;
  auto const on = stream_.recorded_on(caller_handle);
  if (full) request.drop();
  if (full || stream_.captures(on)) {
    give_back(event);
    return 0;
  }
  request.drop(); // a request from here on means a later epoch
  auto const closed = epochs_.close(precise);
  // Another thread may have begun a capture on the stream meanwhile. The event then belongs to the capture, and a query
  // of the event would end the capture.
  auto const result = interpret(stream_.device(), driver().event_record(event->handle, on));
  if (result != CUDA_SUCCESS || stream_.captures(on)) {
    epochs_.not_covered(closed);
    give_back(event);
    return 0;
  }
  // Events of the null and legacy streams also cover work of other streams, so no stream may wait for them.
  bool const waitable = precise && stream_.kind() != stream_kind::null && stream_.kind() != stream_kind::legacy;
  at(size_++) = {closed.number, event, waitable, sync::now()};
  epochs_.covered(closed);
  epochs_.reset_unrecorded();
  return closed.number;
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

bool event_ring::complete(recorded_event const& one) noexcept {
  return driver().event_query(one.event->handle) == CUDA_SUCCESS;
}

// A stream completes its events in order: if the oldest one is complete, queries the newest one. If that one is
// complete too, all between are.
void event_ring::retire_completed(epoch in_last) noexcept {
  std::size_t done = 0;
  epoch seen = 0;
  bool captured = false;
  for (; done < size_; ++done) {
    auto const result = driver().event_query(at(done).event->handle);
    if (result == CUDA_SUCCESS) seen = at(done).covers;
    if (result == CUDA_SUCCESS && done == 0 && size_ > 2 && complete(at(size_ - 1))) {
      seen = newest();
      done = size_;
      break;
    }
    // The event belongs to a capture that began and ended during its record, so it covers nothing.
    if (result == CUDA_ERROR_CAPTURED_EVENT) captured = true;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_CAPTURED_EVENT) continue;
    // An error does not mean "complete": if the device is lost, none of its memory is reused.
    interpret(stream_.device(), result);
    break;
  }
  if (done == 0) return;
  epochs_.publish_completed(seen);
  for (std::size_t i = 0; i < done; ++i) give_back(at(i).event);
  first_ = (first_ + done) % max_events;
  size_ -= done;
  if (captured) epochs_.lose_event(std::max(newest(), in_last));
}

} // namespace gpumem::detail
