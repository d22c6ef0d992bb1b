// The kernels that write and check stamps.
// SPDX-License-Identifier: Apache-2.0
#include "stamp.hpp"

#include <stdexcept>

#include <cuda.h>

namespace stamp {
namespace {

__device__ void spin(unsigned microseconds) {
  if (microseconds == 0) return;
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < 1000ull * microseconds);
}

__global__ void write_kernel(std::uint64_t* words, std::size_t count, std::uint64_t value, unsigned microseconds) {
  spin(microseconds);
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    words[i] = value;
  }
}

__global__ void check_kernel(std::uint64_t const* words, std::size_t count, std::uint64_t value,
                             unsigned long long* wrong, unsigned microseconds) {
  spin(microseconds);
  unsigned long long mine = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    mine += words[i] != value;
  }
  if (mine) atomicAdd(wrong, mine);
}

__global__ void wait_kernel(unsigned volatile* flag) {
  while (*flag == 0) {}
}

__global__ void raise_kernel(unsigned volatile* flag) {
  *flag = 1;
  __threadfence_system();
}

unsigned grid(std::size_t words) {
  return static_cast<unsigned>(words / 256 < 1 ? 1 : words / 256 > 64 ? 64 : words / 256);
}

void launched() {
  if (auto const error = cudaGetLastError(); error != cudaSuccess) throw std::runtime_error{cudaGetErrorString(error)};
}

template <class... Kernel> void load_each(Kernel*... kernels) {
  for (auto const error : {[](auto* kernel) {
         cudaFuncAttributes attributes;
         return cudaFuncGetAttributes(&attributes, kernel);
       }(kernels)...}) {
    if (error != cudaSuccess) throw std::runtime_error{cudaGetErrorString(error)};
  }
}

} // namespace

void load() { load_each(write_kernel, check_kernel, wait_kernel, raise_kernel); }

void write(CUstream stream, void* block, std::size_t bytes, std::uint64_t value, unsigned spin_microseconds) {
  auto const words = bytes / 8;
  write_kernel<<<grid(words), 256, 0, stream>>>(static_cast<std::uint64_t*>(block), words, value, spin_microseconds);
  launched();
}

void check(CUstream stream, void const* block, std::size_t bytes, std::uint64_t value, unsigned long long* wrong,
           unsigned spin_microseconds) {
  auto const words = bytes / 8;
  check_kernel<<<grid(words), 256, 0, stream>>>(static_cast<std::uint64_t const*>(block), words, value, wrong,
                                                spin_microseconds);
  launched();
}

void wait_for(CUstream stream, unsigned volatile* flag) {
  wait_kernel<<<1, 1, 0, stream>>>(flag);
  launched();
}

void raise(CUstream stream, unsigned volatile* flag) {
  raise_kernel<<<1, 1, 0, stream>>>(flag);
  launched();
}

} // namespace stamp
