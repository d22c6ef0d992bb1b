// A program with a kernel and variables of the device. On the simulated device its code is registered, and the launch
// is refused. Prints the error of the launch.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

__device__ int variable;

__global__ void kernel(int value) { variable = value; }

int print_launch_error() {
  kernel<<<1, 1>>>(3);
  std::puts(cudaGetErrorName(cudaGetLastError()));
  return cudaDeviceSynchronize();
}
