// Devices: one state per device, filled at first use.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <dlfcn.h>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
module gpumem:device.impl;
import :device;
import :cuda;
import :driver;
import :process;
import :sync;

namespace gpumem {
namespace {

inline constexpr int max_devices = 64;

struct device_table {
  sync::mutex mutex;
  std::array<detail::device_state, max_devices> states;
};

// Constant-initialised, so that a forked child cannot find it half constructed.
constinit device_table devices;

// Returns null for a device that gpumem has not used, and for -1.
detail::device_state* known_state(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= max_devices) return nullptr;
  auto& state = devices.states[static_cast<std::size_t>(ordinal)];
  return state.known.load(std::memory_order_acquire) ? &state : nullptr;
}

detail::device_state* device_state_of(int ordinal) {
  if (auto* const known = known_state(ordinal)) return known;
  auto const count = device::count();
  if (ordinal < 0 || ordinal >= count || ordinal >= max_devices) {
    throw std::invalid_argument{"gpumem: there is no device " + std::to_string(ordinal) + "; the device count is " +
                                std::to_string(count)};
  }
  sync::lock const lock{devices.mutex};
  auto& state = devices.states[static_cast<std::size_t>(ordinal)];
  if (!state.known.load(std::memory_order_relaxed)) {
    check(driver().device_get(&state.handle, ordinal), "cuDeviceGet");
    check(driver().device_primary_ctx_retain(&state.primary, state.handle), "cuDevicePrimaryCtxRetain");
    check(driver().ctx_get_id(state.primary, &state.context_id), "cuCtxGetId");
    state.ordinal = ordinal;
    state.known.store(true, std::memory_order_release);
  }
  return &state;
}

// Returns how often the simulated device was reset by gpumem::simulator; 0 with a real driver.
std::uint64_t simulated_resets() noexcept {
  static auto* const count = reinterpret_cast<std::uint64_t (*)()>(dlsym(RTLD_DEFAULT, "gpumem_simulator_resets"));
  return count != nullptr ? count() : 0;
}

bool is_current(CUcontext context) {
  CUcontext current = nullptr;
  check(driver().ctx_get_current(&current), "cuCtxGetCurrent");
  return current == context;
}

} // namespace

device::device(int ordinal) : state_{device_state_of(ordinal)} {}

// Not inline: CCCL's constructor would put the path of its header into the interface's object.
device::operator device_ref() const { return device_ref{state_->ordinal}; }

device_memory device::memory() const {
  device_guard const scope{*this};
  device_memory memory;
  check(interpret(driver().mem_get_info(&memory.free, &memory.total)), "cuMemGetInfo");
  return memory;
}

void device::mark_lost(CUresult error) const noexcept {
  auto expected = CUDA_SUCCESS;
  if (!lost() && !detail::forked()) state_->resets_before_loss = simulated_resets();
  state_->lost.compare_exchange_strong(expected, error);
}

// Returns `error`, by which the device was lost, or success if it is no longer lost. A reset of the simulated device
// takes a sticky error back and keeps all streams and memory. A real driver never takes one back.
CUresult device::still_lost(CUresult error) const noexcept {
  if (error == CUDA_ERROR_CONTEXT_IS_DESTROYED || detail::forked()) return error;
  if (simulated_resets() == state_->resets_before_loss) return error;
  state_->lost.compare_exchange_strong(error, CUDA_SUCCESS);
  return CUDA_SUCCESS;
}

bool device::was_reset() const noexcept {
  unsigned long long now = 0;
  auto const answer = driver().ctx_get_id(context(), &now);
  return answer == CUDA_ERROR_CONTEXT_IS_DESTROYED || (answer == CUDA_SUCCESS && now != state_->context_id);
}

// After a reset, the handles of the old context are invalid or name other objects. So a reset can cause all errors
// except not-ready and out-of-memory.
CUresult device::interpret(CUresult answer) const noexcept {
  if (answer == CUDA_SUCCESS || answer == CUDA_ERROR_NOT_READY || answer == CUDA_ERROR_OUT_OF_MEMORY) return answer;
  if (is_sticky(answer)) {
    mark_lost(answer);
  } else if (!lost() && was_reset()) {
    mark_lost(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  return lost() ? lost_error() : answer;
}

void device::throw_if_lost() const {
  if (!lost()) return;
  auto const text = "gpumem: device " + std::to_string(ordinal());
  throw_cuda_error(lost_error(), text.c_str());
}

void device::require() const {
  detail::throw_if_child();
  if (!lost() && was_reset()) mark_lost(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  throw_if_lost();
}

CUresult detail::lost_error_of(int ordinal) noexcept {
  auto* const known = known_state(ordinal);
  return known ? device{*known}.lost_error() : CUDA_SUCCESS;
}

CUresult detail::interpret(int ordinal, CUresult answer) noexcept {
  auto* const known = known_state(ordinal);
  return known ? device{*known}.interpret(answer) : answer;
}

bool detail::notice_reset(int ordinal) noexcept {
  auto* const known = known_state(ordinal);
  if (!known) return false;
  device const device{*known};
  if (!device.lost() && device.was_reset()) device.mark_lost(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return device.lost();
}

int device::count() {
  int count = 0;
  check(driver().device_get_count(&count), "cuDeviceGetCount");
  return count;
}

// Throws if the context belongs to a device that was reset or is lost. After a reset, the old context is still the
// thread's current one, and the driver's `answer` is an error.
void device::throw_if_context_lost(CUcontext context, CUresult answer) {
  for (auto& state : devices.states) {
    if (!state.known.load(std::memory_order_acquire) || state.primary != context) continue;
    device const device{state};
    device.interpret(answer);
    device.throw_if_lost();
  }
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
  auto const answer = driver().ctx_get_device(&handle);
  if (answer != CUDA_SUCCESS) throw_if_context_lost(context, answer);
  check(answer, "cuCtxGetDevice");
  return device{static_cast<int>(handle)};
}

detail::context_guard::context_guard(CUcontext context) noexcept
    : result_{context ? driver().ctx_push_current(context) : CUDA_SUCCESS},
      pushed_{context && result_ == CUDA_SUCCESS} {}

detail::context_guard::~context_guard() {
  CUcontext popped = nullptr;
  if (pushed_) driver().ctx_pop_current(&popped);
}

device_guard::device_guard(device device) : context_guard_{is_current(device.context()) ? nullptr : device.context()} {
  check(context_guard_.result(), "cuCtxPushCurrent");
}

} // namespace gpumem
