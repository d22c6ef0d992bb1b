// Devices: one state each, made at first use.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <array>
#include <atomic>
#include <cstddef>
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

detail::device_state* device_state_of(int ordinal) {
  if (ordinal >= 0 && ordinal < most_devices) {
    auto& state = devices().states[static_cast<std::size_t>(ordinal)];
    if (state.known.load(std::memory_order_acquire)) return &state;
  }
  auto const count = device::count();
  if (ordinal < 0 || ordinal >= count || ordinal >= most_devices) {
    throw std::invalid_argument{"gpumem: there is no device " + std::to_string(ordinal) + " among " +
                                std::to_string(count)};
  }
  auto& table = devices();
  sync::lock const held{table.guard};
  auto& state = table.states[static_cast<std::size_t>(ordinal)];
  if (!state.primary) {
    check(driver().device_get(&state.handle, ordinal), "cuDeviceGet");
    check(driver().device_primary_ctx_retain(&state.primary, state.handle), "cuDevicePrimaryCtxRetain");
    state.ordinal = ordinal;
    state.known.store(true, std::memory_order_release);
  }
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
  case CUDA_ERROR_DEINITIALIZED:
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case CUDA_ERROR_TENSOR_MEMORY_LEAK:
  case CUDA_ERROR_CONTAINED:
  case CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case CUDA_ERROR_EXTERNAL_DEVICE:
  case CUDA_ERROR_UNKNOWN: return true;
  default: return false; // a mistake of the call, or a want that passes
  }
}

} // namespace gpumem
