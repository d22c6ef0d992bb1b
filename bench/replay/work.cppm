// Device work between the operations: a kernel that runs for a given time and writes to the block.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <optional>

#include <cuda.h>

export module replay:work;

import gpumem;
import :options;
import :plan;

namespace replay {

/// The kernel, loaded into the device's primary context through the driver table, so that it works with a simulated
/// driver too. Launches are thread-safe.
export class work_kernel {
public:
  /// Throws cuda_error.
  work_kernel(gpumem::device device, double microseconds);
  work_kernel(work_kernel const&) = delete;
  work_kernel& operator=(work_kernel const&) = delete;
  ~work_kernel();

  /// Enqueues the kernel on the stream; it writes the first word of the block. Throws cuda_error.
  void launch(gpumem::stream_ref stream, void* block, std::uint64_t bytes) const;

private:
  gpumem::device device_;
  std::uint64_t nanoseconds_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

/// Counts the allocations of a pass and returns whether a kernel runs after one.
export class kernel_interval {
public:
  explicit kernel_interval(unsigned every) : every_{every} {}
  inline bool due(operation const& next) noexcept {
    if (!next.allocates || ++count_ < every_) return false;
    count_ = 0;
    return true;
  }

private:
  unsigned every_;
  unsigned count_ = 0;
};

} // namespace replay
