// Kernels that allocate blocks of a heap, stamp and compare them, and free them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.cuh>

#include <cstddef>
#include <cstdint>

/// Blocks of a test, in arrays of the device.
struct block_list {
  unsigned char** blocks;
  std::size_t* bytes;
  unsigned* processors; // the multiprocessor whose thread allocated the block
  unsigned count;
};

/// Counts of the kernels; all but `elsewhere` and `granted` must stay 0.
struct findings {
  unsigned missing, misplaced, overwritten; // null; outside the heap or misaligned; another stamp
  unsigned elsewhere;                       // blocks that another multiprocessor freed than allocated
  unsigned granted;
};

/// The sizes for which a test asks.
struct wanted_sizes {
  std::size_t bytes;  // 0: random sizes
  unsigned most_log;  // random sizes have up to this power of two
  unsigned large_one; // one in so many requests is for more than 64 KiB, up to 1 MiB; 0: none
};

__host__ __device__ inline std::uint64_t random_of(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return key ^ (key >> 31);
}

__device__ inline std::size_t size_of(wanted_sizes const& wanted, std::uint64_t key) {
  if (wanted.bytes != 0) return wanted.bytes;
  auto const random = random_of(key + 1);
  if (wanted.large_one != 0 && random % wanted.large_one == 0) return 65'537 + (random >> 20) % (1'048'576 - 65'536);
  auto const most = std::size_t{1} << (random >> 8) % (wanted.most_log + 1);
  return 1 + (random >> 20) % most;
}

__device__ inline unsigned processor() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

__device__ inline unsigned thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ inline unsigned char stamp_byte(std::uint64_t owner, std::size_t at) {
  return static_cast<unsigned char>(random_of(owner * 0x9e3779b97f4a7c15ull + at / 8) >> at % 8 * 8);
}

// The words of a block but the last bytes, by as many threads as there are.
__device__ inline void write_stamp(unsigned char* block, std::size_t bytes, std::uint64_t owner, unsigned thread,
                                   unsigned threads) {
  for (std::size_t at = thread * 8; at < bytes; at += threads * 8) {
    if (at + 8 <= bytes)
      *reinterpret_cast<std::uint64_t*>(block + at) = random_of(owner * 0x9e3779b97f4a7c15ull + at / 8);
    else
      for (auto i = at; i < bytes; ++i) block[i] = stamp_byte(owner, i);
  }
}

__device__ inline bool has_stamp(unsigned char const* block, std::size_t bytes, std::uint64_t owner, unsigned thread,
                                 unsigned threads) {
  bool same = true;
  for (std::size_t at = thread * 8; at < bytes; at += threads * 8) {
    if (at + 8 <= bytes)
      same &= *reinterpret_cast<std::uint64_t const*>(block + at) == random_of(owner * 0x9e3779b97f4a7c15ull + at / 8);
    else
      for (auto i = at; i < bytes; ++i) same &= block[i] == stamp_byte(owner, i);
  }
  return same;
}

/// Each thread allocates one block, where the list has none yet.
__global__ void allocate_blocks(gpumem::heap_view heap, block_list list, wanted_sizes wanted, std::uint64_t seed) {
  auto const i = thread_number();
  if (i >= list.count || list.blocks[i] != nullptr) return;
  list.bytes[i] = size_of(wanted, seed + i);
  list.blocks[i] = static_cast<unsigned char*>(heap.allocate(list.bytes[i]));
  list.processors[i] = processor();
}

/// A single thread allocates the blocks that the list does not have, until one is null.
__global__ void allocate_in_a_row(gpumem::heap_view heap, block_list list, wanted_sizes wanted, std::uint64_t seed) {
  for (unsigned i = 0; i < list.count; ++i) {
    if (list.blocks[i] != nullptr) continue;
    list.bytes[i] = size_of(wanted, seed + i);
    list.blocks[i] = static_cast<unsigned char*>(heap.allocate(list.bytes[i]));
    list.processors[i] = processor();
    if (list.blocks[i] == nullptr) return;
  }
}

/// A warp stamps 32 blocks, one after the other.
__global__ void stamp_blocks(block_list list, std::uint64_t salt) {
  auto const lane = threadIdx.x % 32, first = thread_number() - lane;
  for (auto i = first; i < first + 32 && i < list.count; ++i)
    if (list.blocks[i] != nullptr) write_stamp(list.blocks[i], list.bytes[i], salt + i, lane, 32);
}

__global__ void compare_blocks(block_list list, std::uint64_t salt, unsigned char const* data, std::size_t bytes,
                               findings* found) {
  auto const lane = threadIdx.x % 32, first = thread_number() - lane;
  for (auto i = first; i < first + 32 && i < list.count; ++i) {
    auto const* const block = list.blocks[i];
    auto const size = list.bytes[i];
    if (block == nullptr) {
      if (lane == 0) atomicAdd(&found->missing, 1);
      continue;
    }
    if (lane == 0) atomicAdd(&found->granted, 1);
    std::size_t alignment = 16;
    while (alignment < size && alignment < 65'536) alignment *= 2;
    bool const placed = block >= data && block + size <= data + bytes && (block - data) % alignment == 0;
    if (lane == 0 && !placed) atomicAdd(&found->misplaced, 1);
    bool const same = placed && has_stamp(block, size, salt + i, lane, 32);
    if (__any_sync(~0u, placed && !same) && lane == 0) atomicAdd(&found->overwritten, 1);
  }
}

/// Each thread frees one block: its own one, or in the reversed order that of another block of threads.
__global__ void free_blocks(gpumem::heap_view heap, block_list list, bool reversed, findings* found) {
  auto const thread = thread_number();
  if (thread >= list.count) return;
  auto const i = reversed ? list.count - 1 - thread : thread;
  if (list.blocks[i] != nullptr && list.processors[i] != processor()) atomicAdd(&found->elsewhere, 1);
  heap.deallocate(list.blocks[i]);
  list.blocks[i] = nullptr;
}

/// Each thread allocates, stamps, compares and frees blocks of random sizes, one at a time.
__global__ void churn(gpumem::heap_view heap, wanted_sizes wanted, unsigned rounds, std::uint64_t seed,
                      findings* found) {
  auto const thread = thread_number();
  for (unsigned round = 0; round < rounds; ++round) {
    auto const key = seed + (std::uint64_t{round} << 32) + thread;
    auto const bytes = size_of(wanted, key);
    auto* const block = static_cast<unsigned char*>(heap.allocate(bytes));
    if (block == nullptr) {
      atomicAdd(&found->missing, 1);
      continue;
    }
    write_stamp(block, bytes, key, 0, 1);
    if (random_of(key) % 4 == 0) __nanosleep(static_cast<unsigned>(random_of(key) >> 8) % 500);
    if (!has_stamp(block, bytes, key, 0, 1)) atomicAdd(&found->overwritten, 1);
    heap.deallocate(block);
  }
}

struct node {
  __device__ node(int number, node* other) : value{number}, next{other} {}
  __device__ ~node() { value = -1; }
  int value;
  node* next;
};

/// Each thread makes a list of objects, adds their values, and destroys them.
__global__ void make_lists(gpumem::heap_view heap, int length, findings* found) {
  node* first = nullptr;
  for (int i = 0; i < length; ++i) {
    node* const added = heap.create<node>(i, first);
    if (added == nullptr)
      atomicAdd(&found->missing, 1);
    else
      first = added;
  }
  int sum = 0;
  while (first != nullptr) {
    node* const next = first->next;
    sum += first->value;
    heap.destroy(first);
    first = next;
  }
  if (sum != length * (length - 1) / 2) atomicAdd(&found->overwritten, 1);
}

/// Each thread has an array of a container's allocator.
__global__ void make_arrays(gpumem::heap_view heap, unsigned count, findings* found) {
  gpumem::heap_allocator<char> const bytes{heap};
  gpumem::heap_allocator<int> const ints{bytes}; // as a container does it
  int* const values = ints.allocate(count);
  if (values == nullptr) {
    atomicAdd(&found->missing, 1);
    return;
  }
  int const first = static_cast<int>(thread_number());
  for (unsigned i = 0; i < count; ++i) values[i] = first + static_cast<int>(i);
  for (unsigned i = 0; i < count; ++i)
    if (values[i] != first + static_cast<int>(i)) atomicAdd(&found->overwritten, 1);
  if (ints != bytes || ints.allocate(0) != nullptr) atomicAdd(&found->misplaced, 1);
  ints.deallocate(values, count);
}

/// One thread makes the calls that a heap counts and ignores, or answers by null. *wrong gets the number of the first
/// check that failed.
__global__ void misuse(gpumem::heap_view heap, void* foreign, int* wrong) {
  auto const check = [&](int number, bool holds) {
    if (!holds && *wrong == 0) *wrong = number;
  };
  check(1, heap.allocate(0) == nullptr);
  check(2, heap.allocate(SIZE_MAX) == nullptr);
  check(3, heap.allocate(SIZE_MAX - 65'535) == nullptr);
  heap.deallocate(nullptr);
  auto* const block = static_cast<unsigned char*>(heap.allocate(100));
  auto* const other = static_cast<unsigned char*>(heap.allocate(100));
  auto* const large = static_cast<unsigned char*>(heap.allocate(200'000));
  check(4, block != nullptr && other != nullptr && large != nullptr && block != other);
  heap.deallocate(foreign);        // bad free 1
  heap.deallocate(block + 16);     // 2: inside a block
  heap.deallocate(large + 65'536); // 3: inside a large block
  heap.deallocate(large + 16);     // 4
  heap.deallocate(block);
  heap.deallocate(large);
#if defined(GPUMEM_DEVICE_HEAP_CHECKS)
  heap.deallocate(block); // 5: twice
  heap.deallocate(large); // 6: twice
#endif
  heap.deallocate(other);
  auto* const again = static_cast<unsigned char*>(heap.allocate(100));
  check(5, again != nullptr);
  heap.deallocate(again);
}

/// All lanes of a warp free the same block at once; all but one are bad frees.
__global__ void free_together(gpumem::heap_view heap, std::size_t bytes) {
  __shared__ void* block;
  if (threadIdx.x == 0) block = heap.allocate(bytes);
  __syncthreads();
  heap.deallocate(block);
}
