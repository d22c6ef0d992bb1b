// A wait for all work of a device that ends no graph capture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace gpumem::c {

/// Waits on the host for a device. The driver waits for all work of the device when it frees memory. cuCtxSynchronize
/// would end each capture, also that of a library which gpumem does not know. The object lives as long as the process.
/// Any thread.
class device_wait {
public:
  explicit device_wait(int device) noexcept : device_{device} {}

  /// Allocates the memory that wait() frees, if the device has some. Called before the device may be full.
  void prepare();
  /// Returns after all work that was enqueued on the device before is complete. Throws std::bad_alloc, without a wait,
  /// if there is no memory to free. Throws cuda_error.
  void wait();

private:
  int const device_;
  std::atomic<unsigned long long> memory_{0}; // 0: none
};

} // namespace gpumem::c
