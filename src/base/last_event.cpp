// Records and queries the last event of a mortal stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <optional>
module gpumem:last_event.impl;
import :last_event;
import :cuda;
import :device;
import :driver;
import :pooled_event;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

epoch last_event::record(CUstream caller_handle, epoch in_ring) noexcept {
  auto const on = stream_.recorded_on(caller_handle);
  if (!event_ || stream_.captures(on)) return 0;
  auto const closed = epochs_.close();
  auto const result = interpret(stream_.device(), driver().event_record(event_->handle, on));
  if (result != CUDA_SUCCESS || stream_.captures(on)) {
    epochs_.not_covered(closed);
    // If the record succeeded, another thread has begun a capture meanwhile, and the event belongs to that capture now.
    // If the record failed, the event still covers the frees that it covered before.
    if (result == CUDA_SUCCESS) lose(in_ring);
    return 0;
  }
  open_ = true;
  covers_ = closed.number;
  recorded_ = sync::now();
  epochs_.covered(closed);
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
