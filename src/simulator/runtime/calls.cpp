// The simulated runtime: the state of each thread, and the start of each call.
// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <atomic>
#include <cstdio>

namespace simulated_runtime {

namespace {

struct thread_state {
  int device = 0;
  cudaError_t error = cudaSuccess;
};
thread_local thread_state state;

} // namespace

cudaError_t keep(cudaError_t result) noexcept {
  if (result != cudaSuccess) state.error = result;
  return result;
}

cudaError_t take_error() noexcept { return std::exchange(state.error, cudaSuccess); }
cudaError_t kept_error() noexcept { return state.error; }

int chosen_device() noexcept { return state.device; }
void choose_device(int device) noexcept { state.device = device; }

CUresult start(driver_table const& cu) noexcept {
  static std::atomic<bool> started{false};
  if (started.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  CUresult const result = cu.cuInit(0);
  if (result == CUDA_SUCCESS) started.store(true, std::memory_order_release);
  return result;
}

CUresult enter_context(driver_table const& cu) noexcept {
  CUdevice device;
  CUresult const now = cu.cuCtxGetDevice(&device);
  if (now != CUDA_ERROR_INVALID_CONTEXT && now != CUDA_ERROR_CONTEXT_IS_DESTROYED) return now;
  CUcontext made;
  CUresult const result = cu.cuDevicePrimaryCtxRetain(&made, state.device);
  return result == CUDA_SUCCESS ? cu.cuCtxSetCurrent(made) : result;
}

cudaError_t refuse_kernel(char const* call) noexcept {
  static std::atomic_flag reported;
  if (!reported.test_and_set())
    std::fprintf(stderr,
                 "gpumem simulator: kernels do not run here: %s is refused. In its place, cudaLaunchHostFunc or "
                 "gpumem::simulator::work runs a function of the host on the stream.\n",
                 call);
  return keep(cudaErrorNotSupported);
}

} // namespace simulated_runtime

/// Called by each function `name` that is not simulated. The function's first call prints on stderr that it is not.
extern "C" int gpumem_simulator_runtime_missing(char const* name, bool& reported) {
  if (!__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
    std::fprintf(stderr, "gpumem simulator: %s is not simulated\n", name);
  return simulated_runtime::keep(cudaErrorNotSupported);
}
