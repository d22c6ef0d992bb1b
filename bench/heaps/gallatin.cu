// Gallatin, whose headers the build finds in GPUMEM_GALLATIN_DIR.
// SPDX-License-Identifier: Apache-2.0
#include <gallatin/allocators/gallatin.cuh>

#include "kernels.cuh"

#include <cstddef>
#include <memory>

namespace heaps {
namespace {

using allocator = gallatin::allocators::Gallatin<16ull * 1024 * 1024, 16, 4096>; // as in its own tests

struct gallatin_view {
  __device__ void* allocate(std::size_t bytes) const { return target->malloc(bytes); }
  __device__ void deallocate(void* block) const { target->free(block); }
  allocator* target = nullptr;
};

class gallatin_heap : public heap_of<gallatin_view> {
public:
  explicit gallatin_heap(std::size_t bytes) : view_{allocator::generate_on_device(bytes, 42, false)} {
    check(cudaDeviceSynchronize(), "make Gallatin's allocator");
  }
  ~gallatin_heap() override { allocator::free_on_device(view_.target); }

private:
  gallatin_view view() const override { return view_; }
  gallatin_view view_;
};

} // namespace

std::unique_ptr<heap> make_gallatin(std::size_t bytes, cudaStream_t) { return std::make_unique<gallatin_heap>(bytes); }

} // namespace heaps
