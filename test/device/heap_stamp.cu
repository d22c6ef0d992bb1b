// The kernels that allocate from a heap, stamp, check and free.
// SPDX-License-Identifier: Apache-2.0
#include "heap_stamp.hpp"

#include <gpumem/device_heap.cuh>

#include <stdexcept>

namespace heap_stamp {
namespace {

constexpr unsigned threads = 256;

__global__ void allocate_kernel(gpumem::heap_view heap, void** blocks, unsigned count, std::size_t bytes) {
  unsigned const i = blockIdx.x * threads + threadIdx.x;
  if (i >= count) return;
  auto* const words = static_cast<unsigned*>(heap.allocate(bytes));
  if (words != nullptr)
    for (std::size_t n = 0; n < bytes / sizeof(unsigned); ++n) words[n] = i;
  blocks[i] = words;
}

__global__ void free_kernel(gpumem::heap_view heap, void** blocks, unsigned count, std::size_t bytes,
                            unsigned long long* wrong) {
  unsigned const thread = blockIdx.x * threads + threadIdx.x;
  if (thread >= count) return;
  unsigned const i = count - 1 - thread;
  auto* const words = static_cast<unsigned*>(blocks[i]);
  unsigned long long mine = 0;
  if (words != nullptr)
    for (std::size_t n = 0; n < bytes / sizeof(unsigned); ++n) mine += words[n] != i;
  if (mine) atomicAdd(wrong, mine);
  heap.deallocate(words);
}

void launched() {
  if (auto const error = cudaGetLastError(); error != cudaSuccess) throw std::runtime_error{cudaGetErrorString(error)};
}

} // namespace

void allocate(CUstream stream, gpumem::heap_view const& heap, void** blocks, unsigned count, std::size_t bytes) {
  allocate_kernel<<<(count + threads - 1) / threads, threads, 0, stream>>>(heap, blocks, count, bytes);
  launched();
}

void free(CUstream stream, gpumem::heap_view const& heap, void** blocks, unsigned count, std::size_t bytes,
          unsigned long long* wrong) {
  free_kernel<<<(count + threads - 1) / threads, threads, 0, stream>>>(heap, blocks, count, bytes, wrong);
  launched();
}

} // namespace heap_stamp
