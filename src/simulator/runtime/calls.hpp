// The parts of each function of the runtime: the context of the thread, and the error that the thread keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "driver_table.hpp"
#include "runtime_api.hpp"

namespace simulated_runtime {

/// Keeps an error for cudaGetLastError; returns it.
cudaError_t keep(cudaError_t result) noexcept;

/// The errors of the driver have the same numbers in the runtime.
inline cudaError_t keep(CUresult result) noexcept { return keep(static_cast<cudaError_t>(result)); }

/// Returns the kept error of the thread, and forgets it.
cudaError_t take_error() noexcept;
cudaError_t kept_error() noexcept;

/// Returns the device that the thread has set, or 0. A context that is current has priority over it.
int chosen_device() noexcept;
void choose_device(int device) noexcept;

/// Initialises the driver. Returns its error.
CUresult start(const driver_table& cu) noexcept;

/// Makes the primary context of the chosen device current, unless an active context is.
CUresult enter_context(const driver_table& cu) noexcept;

/// Returns `body(driver)` after the driver was initialised; keeps its error.
template <class Body> cudaError_t without_context(Body&& body) noexcept {
  const driver_table* cu = opened_driver();
  if (cu == nullptr) return keep(cudaErrorInsufficientDriver);
  if (const CUresult result = start(*cu); result != CUDA_SUCCESS) return keep(result);
  return keep(std::forward<Body>(body)(*cu));
}

/// The same in a context.
template <class Body> cudaError_t in_context(Body&& body) noexcept {
  return without_context([&](const driver_table& cu) {
    using result = decltype(body(cu));
    const CUresult entered = enter_context(cu);
    return entered != CUDA_SUCCESS ? static_cast<result>(entered) : body(cu);
  });
}

/// Calls one function of the driver in a context.
template <auto Function, class... Arguments> cudaError_t pass(Arguments... arguments) noexcept {
  return in_context([&](const driver_table& cu) { return (cu.*Function)(arguments...); });
}

/// Calls one function of the driver that needs no context.
template <auto Function, class... Arguments> cudaError_t pass_plain(Arguments... arguments) noexcept {
  return without_context([&](const driver_table& cu) { return (cu.*Function)(arguments...); });
}

/// Says once per process, at the first refused launch, that kernels do not run. Keeps and returns the error.
cudaError_t refuse_kernel(const char* call) noexcept;

inline CUdeviceptr address(const void* pointer) noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Types of the runtime that have the layout of the driver's.
template <class To, class From> To* as(From* given) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To*>(given);
}
inline CUmemLocation location_of(const cudaMemLocation& given) noexcept {
  return {static_cast<CUmemLocationType>(given.type), given.id};
}

} // namespace simulated_runtime
