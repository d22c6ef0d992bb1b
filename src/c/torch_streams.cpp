// Asks the driver whether streams of PyTorch capture, and adopts those that live as long as the process.
// SPDX-License-Identifier: Apache-2.0
#include "torch_streams.hpp"

#include <cuda.h>

#include <cstdint>

import gpumem;

namespace gpumem::c {

bool captures(void* stream) noexcept {
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const asked = driver_api::driver().stream_is_capturing(static_cast<CUstream>(stream), &status);
  return asked == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::uint64_t capture_of(void* stream) noexcept {
  if (!captures(stream)) return 0; // asking for the capture id of the legacy stream would break captures
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  auto const asked = driver_api::driver().stream_get_capture_info(static_cast<CUstream>(stream), &status, &id, nullptr,
                                                                  nullptr, nullptr, nullptr);
  return asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

// The table of all streams seen has the adopted ones too, also while a capture scope hides them from other searches.
// The stream object is never destroyed, since its destructor would end the promise.
void keep_promises(void* stream, int device, int promises) {
  bool const lives = (promises & GPUMEM_TORCH_STREAM_LIVES) != 0;
  if (!stream || is_default(stream) || !lives) return;
  auto* const handle = static_cast<CUstream>(stream);
  auto const* const seen = detail::seen_handles.find(handle);
  if (seen && seen->owns_handle()) return;
  auto const key = extend::identify(stream_ref{handle}, gpumem::device{device});
  if (!key.identity().capturing() && !key.identity().timeline().owns_handle() &&
      detail::lost_error_of(device) == CUDA_SUCCESS)
    static_cast<void>(*new gpumem::stream{gpumem::stream::adopt(handle)});
}

} // namespace gpumem::c
