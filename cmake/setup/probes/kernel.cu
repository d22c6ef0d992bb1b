// A kernel with a C++20 host part. The program also succeeds without a device.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <concepts>
#include <vector>

#if CUDART_VERSION < 13000
#error "CUDA 13.0 or newer is needed"
#endif

template <std::integral T> __global__ void add(T* values) { values[threadIdx.x] += 1; }

int main() {
  std::vector<int> host(32);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && host.empty()) { add<<<1, 32>>>(host.data()); }
}
