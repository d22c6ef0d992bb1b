// The kernels that allocate and free, for an allocator with the device functions allocate() and deallocate().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "heap.hpp"
#include "stamp.cuh"

namespace heaps {

constexpr unsigned block_threads = 256;

// The bounds limit the registers, so that more warps wait for memory at a time.
template <typename View>
__global__ void __launch_bounds__(block_threads, 3) allocate_blocks(View const view, block_list const blocks) {
  std::uint64_t const first = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  for (auto i = first; i < blocks.count; i += std::uint64_t{gridDim.x} * blockDim.x)
    blocks.addresses[i] = view.allocate(blocks.pattern(i));
}

template <typename View> __global__ void deallocate_blocks(View const view, block_list const blocks) {
  std::uint64_t const first = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  for (auto i = first; i < blocks.count; i += std::uint64_t{gridDim.x} * blockDim.x)
    if (void* const block = blocks.addresses[i]) view.deallocate(block);
}

template <typename View>
__global__ void churn_blocks(View const view, block_list const blocks, unsigned threads, unsigned rounds,
                             std::uint64_t seed, unsigned long long* overwritten) {
  unsigned const thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= threads) return;
  unsigned const kept = static_cast<unsigned>(blocks.count / threads);
  unsigned wrong = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    auto const key = mixed(seed + round * std::uint64_t{threads} + thread);
    std::uint64_t const place = seed == 0 && round < kept ? round : key % kept; // the first launch fills all places
    std::uint64_t const i = place * threads + thread;
    if (auto* const block = static_cast<uint4*>(blocks.addresses[i])) {
      if (!same(*block, stamp_of(i, 0))) ++wrong;
      view.deallocate(block);
    }
    unsigned const bytes = blocks.pattern(key);
    auto* const block = static_cast<uint4*>(view.allocate(bytes));
    blocks.addresses[i] = block;
    blocks.bytes[i] = bytes;
    if (block) *block = stamp_of(i, 0);
  }
  if (wrong != 0) atomicAdd(overwritten, wrong);
}

/// The heap whose kernels call the functions of a View, which is copied to the kernels.
template <typename View> class heap_of : public heap {
public:
  heap_of() { load(); }
  void allocate(block_list const& blocks, bool single_thread, cudaStream_t stream) override {
    auto const threads = single_thread ? 1 : block_threads;
    allocate_blocks<<<grid_of(blocks.count, single_thread), threads, 0, stream>>>(view(), blocks);
    check(cudaGetLastError(), "launch the kernel that allocates");
  }
  void deallocate(block_list const& blocks, bool single_thread, cudaStream_t stream) override {
    auto const threads = single_thread ? 1 : block_threads;
    deallocate_blocks<<<grid_of(blocks.count, single_thread), threads, 0, stream>>>(view(), blocks);
    check(cudaGetLastError(), "launch the kernel that frees");
  }
  void churn(block_list const& blocks, unsigned threads, unsigned rounds, std::uint64_t seed,
             unsigned long long* overwritten, cudaStream_t stream) override {
    churn_blocks<<<grid_of(threads, false), block_threads, 0, stream>>>(view(), blocks, threads, rounds, seed,
                                                                        overwritten);
    check(cudaGetLastError(), "launch the kernel that replaces blocks");
  }

protected:
  virtual View view() const = 0;

private:
  static unsigned grid_of(std::uint64_t count, bool single_thread) {
    return single_thread ? 1 : static_cast<unsigned>((count + block_threads - 1) / block_threads);
  }
  // The first launch of a kernel that is not loaded takes longer.
  static void load() {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, allocate_blocks<View>), "load a kernel");
    check(cudaFuncGetAttributes(&attributes, deallocate_blocks<View>), "load a kernel");
    check(cudaFuncGetAttributes(&attributes, churn_blocks<View>), "load a kernel");
  }
};

} // namespace heaps
