// Questions to the driver about a stream, and changes of its identity.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstdint>
module gpumem:stream_identity.impl;
import :stream_identity;
import :cuda;
import :device;
import :driver;

namespace gpumem::detail {

CUstream stream_identity::recorded_on(CUstream caller_handle) const noexcept {
  return kind() == stream_kind::null ? CU_STREAM_PER_THREAD : caller_handle;
}

bool stream_identity::captures(CUstream caller_handle) const noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const answer = interpret(device_, driver().stream_is_capturing(caller_handle, &status));
  return answer != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::uint64_t id_of_capture(CUstream handle) noexcept {
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  auto const asked = driver().stream_get_capture_info(handle, &status, &id, nullptr, nullptr, nullptr, nullptr);
  return asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

bool stream_identity::is_usable() const noexcept { return driver_alive() && lost_error_of(device_) == CUDA_SUCCESS; }

bool stream_identity::was_reset() const noexcept { return notice_reset(device_); }

// The id is stored last: a thread that sees the new id sees all other members as well.
void stream_identity::reassign(stream_kind kind, std::uint64_t id, CUstream handle) noexcept {
  capturing_.store(false, std::memory_order_relaxed);
  promises_ = 0;
  handle_.store(handle, std::memory_order_relaxed);
  kind_.store(kind, std::memory_order_relaxed);
  id_.store(id, std::memory_order_release);
}

void stream_identity::change_promises(bool promised) noexcept {
  promises_ += promised ? 1 : -1;
  kind_.store(promises_ > 0 ? stream_kind::adopted : stream_kind::foreign, std::memory_order_relaxed);
  if (promises_ == 0) set_capturing(false); // from now on the driver is asked
}

} // namespace gpumem::detail
