// The streams of PyTorch: their handles, whether they capture, and what PyTorch promises about them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include <cstdint>

namespace gpumem::c {

/// Returns gpumem's handle for PyTorch's `stream`. They differ for handle 0: PyTorch means the legacy stream on every
/// thread, gpumem takes 0 as a different stream on each thread.
inline void* named(void* stream) noexcept { return stream ? stream : GPUMEM_STREAM_LEGACY; }
inline bool is_default(void* stream) noexcept {
  return stream == GPUMEM_STREAM_LEGACY || stream == GPUMEM_STREAM_PER_THREAD;
}

/// Returns whether the stream takes part in a capture; false also on an error.
bool captures(void* stream) noexcept;
/// Returns the id of the capture in which the stream takes part; 0 if there is none, and on an error.
std::uint64_t capture_of(void* stream) noexcept;

/// Adopts the stream of the device if `promises` has GPUMEM_TORCH_STREAM_LIVES, unless the stream captures. From then
/// on the driver is not asked which stream the handle is, and gpumem may record events on it at any time. Does nothing
/// for a default stream. Throws what extend::identify and stream::adopt throw.
void keep_promises(void* stream, int device, int promises);

} // namespace gpumem::c
