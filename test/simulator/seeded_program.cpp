// A program that knows nothing of the simulated device: prints the order in which work of two streams ran.
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>

#include <array>
#include <cstdio>
#include <string>

namespace {
std::string order; // work runs on the only thread
}

int main() {
  if (CUresult const result = cuInit(0); result != CUDA_SUCCESS) {
    std::printf("cuInit: %d\n", result);
    return 3;
  }
  CUcontext context = nullptr;
  std::array<CUstream, 2> streams{};
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) return 1;
  for (CUstream& each : streams)
    if (cuStreamCreate(&each, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return 1;
  auto const first = [](void*) { order += 'a'; };
  auto const second = [](void*) { order += 'b'; };
  for (int i = 0; i < 32; ++i) {
    cuLaunchHostFunc(streams[0], first, nullptr);
    cuLaunchHostFunc(streams[1], second, nullptr);
  }
  if (cuCtxSynchronize() != CUDA_SUCCESS) return 1;
  std::puts(order.c_str());
}
