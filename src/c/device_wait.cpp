// Waits for a device by a free of its memory.
// SPDX-License-Identifier: Apache-2.0
#include "device_wait.hpp"

#include <cuda.h>

#include <cstddef>
#include <new>

import gpumem;

namespace gpumem::c {
namespace {

using driver_api::driver;

constexpr std::size_t freed_bytes = std::size_t{2} << 20; // a smaller free does not wait

} // namespace

void device_wait::prepare() {
  if (memory_.load() != 0) return;
  device_guard const scope{device{device_}};
  detail::relaxed_capture const relaxed; // otherwise the driver refuses the calls beside captures
  CUdeviceptr made = 0;
  unsigned long long none = 0;
  if (driver().mem_alloc(&made, freed_bytes) != CUDA_SUCCESS || memory_.compare_exchange_strong(none, made)) return;
  driver().mem_free(made); // another thread was faster
}

void device_wait::wait() {
  prepare();
  CUdeviceptr const freed = memory_.exchange(0);
  if (freed == 0) throw std::bad_alloc{};
  {
    device_guard const scope{device{device_}};
    detail::relaxed_capture const relaxed;
    driver_api::check(driver().mem_free(freed), "cuMemFree");
  }
  prepare();
}

} // namespace gpumem::c
