// Ouroboros with its standard queues, of pages and of chunks. The build finds its headers in GPUMEM_OUROBOROS_DIR.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstddef>
#include <iostream>
#include <memory>

// Ouroboros prints cudaDeviceProp::clockRate, which CUDA 13 does not have. It runs without its counters of calls.
#define clockRate major
#define statistics_enabled default_statistics
#include "Parameters.h"
#undef statistics_enabled
static constexpr bool statistics_enabled = false;
#include "device/Ouroboros_impl.cuh"

#include "device/MemoryInitialization.cuh"

#include "InstanceDefinitions.cuh"

#include "kernels.cuh"

namespace heaps {
namespace {

template <typename Allocator> struct ouroboros_view {
  __device__ void* allocate(std::size_t bytes) const { return target->malloc(bytes); }
  __device__ void deallocate(void* block) const { target->free(block); }
  Allocator* target = nullptr;
};

template <typename Allocator> class ouroboros_heap : public heap_of<ouroboros_view<Allocator>> {
public:
  explicit ouroboros_heap(std::size_t bytes) {
    allocator_.initialize(bytes);
    check(cudaDeviceSynchronize(), "make Ouroboros");
  }

private:
  ouroboros_view<Allocator> view() const override {
    return {const_cast<Allocator&>(allocator_).getDeviceMemoryManager()};
  }
  Allocator allocator_; // frees its memory
};

} // namespace

std::unique_ptr<heap> make_ouroboros(std::size_t bytes, cudaStream_t) {
  return std::make_unique<ouroboros_heap<OuroPQ>>(bytes);
}
std::unique_ptr<heap> make_ouroboros_chunks(std::size_t bytes, cudaStream_t) {
  return std::make_unique<ouroboros_heap<OuroCQ>>(bytes);
}

} // namespace heaps
