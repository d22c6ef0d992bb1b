// Common parts of the runtime's functions: they enter a context, call the driver, and keep errors for the thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "driver_table.hpp"
#include "runtime_api.hpp"

namespace simulated_runtime {

/// Keeps an error of the calling thread for cudaGetLastError. Returns its argument.
cudaError_t keep(cudaError_t result) noexcept;

/// Keeps an error of the driver. The runtime has the same error numbers.
inline cudaError_t keep(CUresult result) noexcept { return keep(static_cast<cudaError_t>(result)); }

/// Returns the error that the thread has kept, and forgets it.
cudaError_t take_error() noexcept;
cudaError_t kept_error() noexcept;

/// Returns the device that the thread has set, or 0. If a context is current, calls use that context instead.
int chosen_device() noexcept;
void choose_device(int device) noexcept;

/// Initialises the driver. Returns its error.
CUresult start(driver_table const& cu) noexcept;

/// Makes the primary context of chosen_device() current, unless an active context is current.
CUresult enter_context(driver_table const& cu) noexcept;

/// Initialises the driver and returns the result of `body(driver)`. Keeps the error.
template <class Body> cudaError_t without_context(Body&& body) noexcept {
  driver_table const* cu = opened_driver();
  if (cu == nullptr) return keep(cudaErrorInsufficientDriver);
  if (CUresult const result = start(*cu); result != CUDA_SUCCESS) return keep(result);
  return keep(std::forward<Body>(body)(*cu));
}

/// Like without_context(), but enters a context before the call of `body`.
template <class Body> cudaError_t in_context(Body&& body) noexcept {
  return without_context([&](driver_table const& cu) {
    using result = decltype(body(cu));
    CUresult const entered = enter_context(cu);
    return entered != CUDA_SUCCESS ? static_cast<result>(entered) : body(cu);
  });
}

/// Calls one function of the driver in a context.
template <auto Function, class... Arguments> cudaError_t pass(Arguments... arguments) noexcept {
  return in_context([&](driver_table const& cu) { return (cu.*Function)(arguments...); });
}

/// Calls one function of the driver that needs no context.
template <auto Function, class... Arguments> cudaError_t pass_plain(Arguments... arguments) noexcept {
  return without_context([&](driver_table const& cu) { return (cu.*Function)(arguments...); });
}

/// Keeps and returns the error of a refused launch. At the first refused launch of the process, says on stderr that
/// kernels do not run.
cudaError_t refuse_kernel(char const* call) noexcept;

inline CUdeviceptr address(void const* pointer) noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Converts a pointer from a type of the runtime to the driver's type with the same layout.
template <class To, class From> To* as(From* handle) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To*>(handle);
}
inline CUmemLocation location_of(cudaMemLocation const& location) noexcept {
  return {static_cast<CUmemLocationType>(location.type), location.id};
}

} // namespace simulated_runtime
