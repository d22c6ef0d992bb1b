// An allocator that kernels call, as gpumem-heap-bench sees it, and the sizes that the kernels ask for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __CUDACC__
#define HEAPS_BOTH __host__ __device__
#else
#define HEAPS_BOTH
#endif

namespace heaps {

/// Throws std::runtime_error if the call failed.
inline void check(cudaError_t status, char const* call) {
  if (status != cudaSuccess) throw std::runtime_error(std::string{call} + ": " + cudaGetErrorString(status));
}

/// Returns a number that looks random, the same for the same key.
HEAPS_BOTH inline std::uint64_t mixed(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return key ^ (key >> 31);
}

/// The sizes of requests: multiples of 16 bytes.
struct sizes {
  enum class kind : unsigned { one, uniform, small_heavy };
  static constexpr unsigned classes = 10; // the powers of two from 16 B to 8 KiB
  kind which = kind::one;
  unsigned bytes = 16; // of kind::one

  /// Returns the size of the request with this key. uniform: each class is as likely as the others. small_heavy: each
  /// class is half as likely as the one before it. In a class all multiples of 16 are as likely.
  HEAPS_BOTH unsigned operator()(std::uint64_t key) const {
    if (which == kind::one) return bytes;
    auto const random = mixed(key);
    unsigned order = static_cast<unsigned>(random % classes);
    if (which == kind::small_heavy) {
      for (order = 0; order < classes - 1 && (random >> order) % 2 == 0;) ++order;
    }
    unsigned const largest = 1u << order, half = largest / 2; // in units of 16 bytes
    return (largest - static_cast<unsigned>((random >> 32) % (half == 0 ? 1 : half))) * 16;
  }
};

/// The blocks of a test: addresses, and sizes where the kernels have chosen them.
struct block_list {
  void** addresses = nullptr;
  unsigned* bytes = nullptr; // null: the sizes are pattern(index)
  std::uint64_t count = 0;
  sizes pattern;
};

/// Bytes of a heap that are in use.
struct usage {
  std::uint64_t live = 0; // blocks rounded up to their class
  std::uint64_t slabs = 0;
};

/// An allocator. All work goes to the stream. Functions throw std::runtime_error if a call of CUDA fails.
class heap {
public:
  virtual ~heap() = default;
  /// Allocates all blocks of the list: each in a thread of its own, or all in a single thread.
  virtual void allocate(block_list const& blocks, bool single_thread, cudaStream_t stream) = 0;
  /// Frees the blocks of the list that are not null.
  virtual void deallocate(block_list const& blocks, bool single_thread, cudaStream_t stream) = 0;
  /// Thread i owns the blocks i, i + threads, i + 2 * threads and so on. In each round it frees a random one of them
  /// and allocates another in its place; with the seed 0 it first allocates all of them. A block begins with the first
  /// word of its stamp, which is compared before the free: *overwritten counts those that differ.
  virtual void churn(block_list const& blocks, unsigned threads, unsigned rounds, std::uint64_t seed,
                     unsigned long long* overwritten, cudaStream_t stream) = 0;
  /// Makes a heap that never reuses memory empty again.
  virtual void restart(cudaStream_t) {}
  /// Returns whether freed memory is allocated again.
  virtual bool reuses() const { return true; }
  /// Returns whether the device's context stays for the next heap: gpumem's pool lives in it.
  virtual bool keeps_context() const { return false; }
  /// Returns what is in use after the work of the stream; null if the heap cannot tell.
  virtual std::optional<usage> in_use(cudaStream_t) { return std::nullopt; }
};

/// An allocator's name, and the function that makes a heap of it.
struct heap_kind {
  char const* name;
  std::unique_ptr<heap> (*make)(std::size_t bytes, cudaStream_t stream);
};

std::unique_ptr<heap> make_bump(std::size_t bytes, cudaStream_t stream);
std::unique_ptr<heap> make_cuda(std::size_t bytes, cudaStream_t stream);
std::unique_ptr<heap> make_gpumem(std::size_t bytes, cudaStream_t stream);
std::unique_ptr<heap> make_gallatin(std::size_t bytes, cudaStream_t stream);
std::unique_ptr<heap> make_ouroboros(std::size_t bytes, cudaStream_t stream);
std::unique_ptr<heap> make_ouroboros_chunks(std::size_t bytes, cudaStream_t stream);

} // namespace heaps
