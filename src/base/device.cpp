// Devices: one state each, made at first use.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
module gpumem:device.impl;
import :device;
import :cuda;
import :driver;
import :sync;

namespace gpumem {
namespace {

inline constexpr int most_devices = 64;

struct device_table {
  sync::mutex guard;
  std::array<detail::device_state, most_devices> states;
};

device_table& devices() {
  static auto* const table = new device_table;
  return *table;
}

// A device once seen is found without the driver, which may be what has failed.
detail::device_state* device_state_of(int ordinal) {
  auto& table = devices();
  sync::lock const held{table.guard};
  if (ordinal >= 0 && ordinal < most_devices && table.states[static_cast<std::size_t>(ordinal)].primary) {
    return &table.states[static_cast<std::size_t>(ordinal)];
  }
  auto const count = device::count();
  if (ordinal < 0 || ordinal >= count || ordinal >= most_devices) {
    throw std::invalid_argument{"gpumem: there is no device " + std::to_string(ordinal) + " among " +
                                std::to_string(count)};
  }
  auto& state = table.states[static_cast<std::size_t>(ordinal)];
  check(driver().device_get(&state.handle, ordinal), "cuDeviceGet");
  check(driver().device_primary_ctx_retain(&state.primary, state.handle), "cuDevicePrimaryCtxRetain");
  state.ordinal = ordinal;
  return &state;
}

} // namespace

device::device(int ordinal) : state_{device_state_of(ordinal)} {}

device_memory device::memory() const {
  current_device const scope{*this};
  device_memory memory;
  check(driver().mem_get_info(&memory.free, &memory.total), "cuMemGetInfo");
  return memory;
}

void device::lose(CUresult error) const noexcept {
  auto expected = CUDA_SUCCESS;
  state_->lost.compare_exchange_strong(expected, error);
}

int device::count() {
  int count = 0;
  check(driver().device_get_count(&count), "cuDeviceGetCount");
  return count;
}

device device::current() {
  CUcontext context = nullptr;
  check(driver().ctx_get_current(&context), "cuCtxGetCurrent");
  if (!context) {
    device const first{0};
    check(driver().ctx_set_current(first.context()), "cuCtxSetCurrent");
    return first;
  }
  CUdevice handle{};
  check(driver().ctx_get_device(&handle), "cuCtxGetDevice");
  return device{static_cast<int>(handle)};
}

current_device::current_device(device which) : pushed_{false} {
  CUcontext context = nullptr;
  check(driver().ctx_get_current(&context), "cuCtxGetCurrent");
  if (context == which.context()) return;
  check(driver().ctx_push_current(which.context()), "cuCtxPushCurrent");
  pushed_ = true;
}

current_device::~current_device() {
  CUcontext popped = nullptr;
  if (pushed_) driver().ctx_pop_current(&popped);
}

bool sticky(CUresult error) noexcept {
  switch (error) {
  case CUDA_SUCCESS:
  case CUDA_ERROR_NOT_READY:
  case CUDA_ERROR_OUT_OF_MEMORY:
  case CUDA_ERROR_INVALID_VALUE:
  case CUDA_ERROR_INVALID_HANDLE:
  case CUDA_ERROR_NOT_SUPPORTED:
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
  case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
  case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
  case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
  case CUDA_ERROR_CAPTURED_EVENT: return false;
  default: return true;
  }
}

} // namespace gpumem
