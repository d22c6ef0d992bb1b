// A bump pointer: one atomic for the lanes of a warp that allocate together. A free does nothing.
// SPDX-License-Identifier: Apache-2.0
#include "kernels.cuh"

#include <cstddef>
#include <memory>

namespace heaps {
namespace {

struct bump_view {
  __device__ void* allocate(std::size_t bytes) const {
    auto const rounded = static_cast<unsigned>((bytes + 15) / 16 * 16);
    unsigned const lanes = __activemask(), lane = threadIdx.x % 32;
    unsigned sum = 0, before = 0; // of all lanes, and of those before this one
    int equal = 0;
    __match_all_sync(lanes, rounded, &equal);
    if (equal) {
      sum = __popc(lanes) * rounded;
      before = __popc(lanes & ((1u << lane) - 1)) * rounded;
    } else {
      for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        int const other = __ffs(static_cast<int>(rest)) - 1;
        unsigned const part = __shfl_sync(lanes, rounded, other);
        sum += part;
        if (other < static_cast<int>(lane)) before += part;
      }
    }
    int const leader = __ffs(static_cast<int>(lanes)) - 1;
    unsigned long long first = 0;
    if (static_cast<int>(lane) == leader) first = atomicAdd(used, sum);
    first = __shfl_sync(lanes, first, leader) + before;
    return first + rounded <= size ? memory + first : nullptr;
  }
  __device__ void deallocate(void*) const {}

  char* memory = nullptr;
  std::size_t size = 0;
  unsigned long long* used = nullptr;
};

class bump_heap : public heap_of<bump_view> {
public:
  explicit bump_heap(std::size_t bytes) {
    view_.size = bytes;
    check(cudaMalloc(&view_.memory, bytes), "allocate the memory of the bump pointer");
    check(cudaMalloc(&view_.used, sizeof *view_.used), "allocate the bump pointer");
  }
  ~bump_heap() override {
    cudaFree(view_.memory);
    cudaFree(view_.used);
  }
  void restart(cudaStream_t stream) override {
    check(cudaMemsetAsync(view_.used, 0, sizeof *view_.used, stream), "reset the bump pointer");
  }
  bool reuses() const override { return false; }

private:
  bump_view view() const override { return view_; }
  bump_view view_;
};

} // namespace

std::unique_ptr<heap> make_bump(std::size_t bytes, cudaStream_t stream) {
  auto made = std::make_unique<bump_heap>(bytes);
  made->restart(stream);
  return made;
}

} // namespace heaps
