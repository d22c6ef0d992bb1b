// Shows the chunks and blocks of a pool to tools that check memory, by way of NVTX, NVIDIA's interface to tools.
// SPDX-License-Identifier: Apache-2.0
module;
#include <map>
export module gpumem:nvtx_heaps;
import :device;
import :std;
import :sync;

namespace gpumem::detail {

/// Tells a tool that checks memory, such as compute-sanitizer, of the chunks and the blocks of one pool. The tool can
/// then report accesses to bytes of a chunk that are in no live block. In NVTX's memory interface (nvToolsExtMem.h) a
/// chunk is a heap and a block is a region.
///
/// Only chunks that are whole allocations of cuMemAlloc, cuMemAllocManaged or cuMemHostAlloc become heaps. Tools refuse
/// mapped pages and memory of driver pools, and count each refusal as an error of the program. Any thread.
export class nvtx_heaps {
public:
  /// Returns null if no tool implements NVTX's memory interface, or in a build without NVTX's headers. The first call
  /// loads the tool; the driver must be initialised before. Throws std::bad_alloc.
  static std::unique_ptr<nvtx_heaps> make(device device);
  explicit nvtx_heaps(device device) noexcept : device_{device} {}

  /// Makes a new chunk a heap. Does nothing if a heap of another pool overlaps the chunk, or if the tool refuses the
  /// chunk. The blocks of such a chunk become no regions.
  void add_heap(void* base, std::size_t bytes) noexcept;
  /// Ends the heap of a chunk that is about to be freed. Does nothing if the chunk is no heap.
  void remove_heap(void* base) noexcept;

  /// Makes a new block a region, if it is in a heap. Returns false if the host has no memory for the region.
  bool add_region(void* block, std::size_t bytes) noexcept;
  /// Ends the region of a block that is about to be freed. Does nothing if the block is no region, or has a size other
  /// than `bytes`. Without `bytes` any size is right.
  void remove_region(void* block, std::optional<std::size_t> bytes) noexcept;

private:
  struct heap {
    std::size_t bytes;
    void* handle;
  };
  void* heap_of(std::uintptr_t block) noexcept __attribute__((requires_capability(mutex_)));

  device const device_;
  sync::mutex mutex_; // held while functions of the tool run
  std::map<std::uintptr_t, heap> heaps_ __attribute__((guarded_by(mutex_)));
  std::map<std::uintptr_t, std::size_t> regions_ __attribute__((guarded_by(mutex_))); // bytes of each region by address
};

} // namespace gpumem::detail
