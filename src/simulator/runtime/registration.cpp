// Functions that compiled .cu files call. Registration of kernels and variables does nothing; launches are refused.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>

#include "calls.hpp"

using namespace simulated_runtime;

namespace {

void* registered; // its address is the handle of all registered code

} // namespace

#pragma GCC visibility push(default)
extern "C" {

void** __cudaRegisterFatBinary(void*) { return &registered; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, char const*, char*, char const*, int, void*, void*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, char const*, int, size_t, int, int) {}
void __cudaRegisterHostVar() {}
void __cudaRegisterUnifiedTable() {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterManagedVar(void**, void**, char*, char const* name, int, size_t, int, int) {
  std::fprintf(stderr, "gpumem simulator: the variable %s is __managed__, which is not simulated\n", name);
}

/// Returns 1, because a caller that gets a value other than 0 skips the launch.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) {
  refuse_kernel("a launch by <<<>>>");
  return 1;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return keep(cudaErrorMissingConfiguration); }

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, void const* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel("a launch by <<<>>>");
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel("a launch by <<<>>>");
}

} // extern "C"
#pragma GCC visibility pop
