// Kernels that stamp whole blocks and compare them later, so that blocks that overlap are found.
// SPDX-License-Identifier: Apache-2.0
#include "stamp.cuh"

#include "stamp.hpp"

namespace heaps {
namespace {

constexpr unsigned block_threads = 256, warp_lanes = 32;

__device__ unsigned bytes_of(block_list const& blocks, std::uint64_t i) {
  return blocks.bytes ? blocks.bytes[i] : blocks.pattern(i);
}

__device__ bool aligned(void const* block) { return reinterpret_cast<std::uintptr_t>(block) % 16 == 0; }

// A warp does 32 blocks, one after the other, with all its lanes.
__global__ void write(block_list const blocks) {
  unsigned const lane = threadIdx.x % warp_lanes;
  std::uint64_t const first = blockIdx.x * std::uint64_t{block_threads} + threadIdx.x - lane;
  for (auto i = first; i < first + warp_lanes && i < blocks.count; ++i) {
    auto* const words = static_cast<uint4*>(blocks.addresses[i]);
    if (!words || !aligned(words)) continue;
    for (unsigned word = lane; word < bytes_of(blocks, i) / 16; word += warp_lanes) words[word] = stamp_of(i, word);
  }
}

__global__ void compare(block_list const blocks, findings* found) {
  unsigned const lane = threadIdx.x % warp_lanes;
  std::uint64_t const first = blockIdx.x * std::uint64_t{block_threads} + threadIdx.x - lane;
  unsigned long long missing = 0, misaligned = 0, overwritten = 0, bytes = 0;
  for (auto i = first; i < first + warp_lanes && i < blocks.count; ++i) {
    auto const* const words = static_cast<uint4 const*>(blocks.addresses[i]);
    bool wrong = false;
    if (words && aligned(words)) {
      for (unsigned word = lane; word < bytes_of(blocks, i) / 16; word += warp_lanes)
        wrong |= !same(words[word], stamp_of(i, word));
    }
    if (__any_sync(~0u, wrong)) ++overwritten;
    if (!words) ++missing;
    if (!aligned(words)) ++misaligned;
    if (words) bytes += bytes_of(blocks, i);
  }
  if (lane != 0) return;
  if (missing != 0) atomicAdd(&found->missing, missing);
  if (misaligned != 0) atomicAdd(&found->misaligned, misaligned);
  if (overwritten != 0) atomicAdd(&found->overwritten, overwritten);
  atomicAdd(&found->bytes, bytes);
}

__global__ void spin(long long cycles) {
  for (auto const begin = clock64(); clock64() - begin < cycles;) {}
}

unsigned grid_of(std::uint64_t count) { return static_cast<unsigned>((count + block_threads - 1) / block_threads); }

} // namespace

void write_stamps(block_list const& blocks, cudaStream_t stream) {
  write<<<grid_of(blocks.count), block_threads, 0, stream>>>(blocks);
  check(cudaGetLastError(), "launch the kernel that stamps");
}

void compare_stamps(block_list const& blocks, findings* found, cudaStream_t stream) {
  compare<<<grid_of(blocks.count), block_threads, 0, stream>>>(blocks, found);
  check(cudaGetLastError(), "launch the kernel that compares stamps");
}

void hold(cudaStream_t stream) {
  spin<<<1, 1, 0, stream>>>(100'000);
  check(cudaGetLastError(), "launch the kernel that spins");
}

} // namespace heaps
