// PyTorch's caching allocator as a peer, called from C++. PYTORCH_CUDA_ALLOC_CONF selects its variant, as usual.
// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstddef>
#include <exception>
#include <iterator>
#include <mutex>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// PyTorch has one allocator per process, so `self` is the device number plus one, which is never null.
int device_of(void* self) { return static_cast<int>(reinterpret_cast<std::size_t>(self)) - 1; }

void* make(int device) {
  try {
    static std::once_flag once;
    std::call_once(once, [] { allocator::init(c10::cuda::device_count()); });
    allocator::emptyCache();
    allocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
    return reinterpret_cast<void*>(static_cast<std::size_t>(device) + 1);
  } catch (std::exception const&) { return nullptr; }
}

void destroy(void*) { allocator::emptyCache(); }

void* allocate(void*, std::size_t bytes, CUstream stream) {
  try {
    return allocator::raw_alloc_with_stream(bytes, stream);
  } catch (std::exception const&) { return nullptr; }
}

void deallocate(void*, void* pointer, std::size_t, CUstream) { allocator::raw_delete(pointer); }

std::size_t peak_reserved(void* self) {
  auto const stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device_of(self)));
  return static_cast<std::size_t>(stats.reserved_bytes[0].peak);
}

constexpr gpumem_peer peers[] = {{"torch", make, destroy, allocate, deallocate, peak_reserved}};

} // namespace

gpumem_peer const* gpumem_bench_peers(std::size_t* count) {
  *count = std::size(peers);
  return peers;
}
