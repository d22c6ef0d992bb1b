// CUDA's malloc and free in kernels.
// SPDX-License-Identifier: Apache-2.0
#include "kernels.cuh"

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace heaps {
namespace {

struct cuda_view {
  __device__ void* allocate(std::size_t bytes) const { return malloc(bytes); }
  __device__ void deallocate(void* block) const { free(block); }
};

// CUDA takes the heap's size before the first kernel that allocates is loaded, and gives the heap up with the context.
struct heap_limit {
  explicit heap_limit(std::size_t bytes) {
    check(cudaDeviceSetLimit(cudaLimitMallocHeapSize, bytes), "set the size of CUDA's heap");
  }
};

class cuda_heap : heap_limit, public heap_of<cuda_view> {
public:
  explicit cuda_heap(std::size_t bytes) : heap_limit{bytes} {}

private:
  cuda_view view() const override { return {}; }
};

} // namespace

std::unique_ptr<heap> make_cuda(std::size_t bytes, cudaStream_t) { return std::make_unique<cuda_heap>(bytes); }

} // namespace heaps
