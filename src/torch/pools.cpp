// Pools of PyTorch and graphs; several devices and processes.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <utility>

namespace gpumem_torch {
namespace {

// The allocator of a MemPool, from which the pool draws its memory. Kept for ever: blocks of the pool may be freed when
// the process ends.
struct segment_source {
  std::shared_ptr<torch_cuda::CUDAAllocator> owned;
  torch_cuda::CUDAAllocator* from;
  DeviceIndex device;

  static void* allocate(void* context, void*, std::size_t bytes, std::size_t) {
    auto const& self = *static_cast<segment_source*>(context);
    try {
      c10::cuda::CUDAGuard const guard{self.device};
      return self.from->raw_alloc(bytes);
    } catch (std::exception const&) { return nullptr; }
  }
  // The allocator knows no stream order, so its memory must be unused.
  static void free(void* context, void* stream, void* pointer, std::size_t, std::size_t) {
    auto const& self = *static_cast<segment_source*>(context);
    try {
      c10::cuda::CUDAGuard const guard{self.device};
      static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
      self.from->raw_delete(pointer);
    } catch (std::exception const&) {} // the allocator keeps the memory
  }
};

// Makes an exception of gpumem one of PyTorch.
template <class Work> void run(Work work) {
  std::string text;
  try {
    return work();
  } catch (std::exception const& error) { text = error.what(); }
  TORCH_CHECK(false, text);
}

void retain(DeviceIndex device, MempoolId_t pool, std::shared_ptr<torch_cuda::CUDAAllocator> owned,
            torch_cuda::CUDAAllocator* from) {
  if (!from) return check(gpumem_torch_retain_pool(device, pool, nullptr));
  auto source = std::make_unique<segment_source>(segment_source{std::move(owned), from, device});
  gpumem_callbacks functions{};
  functions.size = sizeof functions;
  functions.context = source.get();
  functions.allocate = &segment_source::allocate;
  functions.free = &segment_source::free;
  check(gpumem_torch_retain_pool(device, pool, &functions));
  static_cast<void>(source.release());
}

} // namespace

void allocator::refuse(char const* function) {
  TORCH_CHECK(false, name(), " does not yet support ", function,
              ". If you need it, please file an issue describing your use case.");
}

void allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
  run([&] { gpumem_torch_begin_allocate_to_pool(device, pool, std::move(filter)); });
}

void allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  run([&] { gpumem_torch_end_allocate_to_pool(device, pool); });
}

void allocator::releasePool(DeviceIndex device, MempoolId_t pool) { gpumem_torch_release_pool(device, pool); }

int allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  int count = 0;
  check(gpumem_torch_pool_use_count(device, pool, &count));
  return count;
}

#if GPUMEM_TORCH_AT_LEAST(11)
void allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> segments) {
  auto* const from = segments.get();
  retain(device, pool, std::move(segments), from);
}

void allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) {
  check(gpumem_torch_use_pool_on_out_of_memory(device, pool, use));
}

void allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) { check(gpumem_torch_set_pool_unsplit(device, pool)); }
#else
void allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* segments) {
  retain(device, pool, nullptr, segments);
}

void allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool) {
  check(gpumem_torch_use_pool_on_out_of_memory(device, pool, 1));
}
#endif

void allocator::emptyCache(MempoolId_t pool) {
  call_context const of_pages{history_.gather(torch_cuda::RecordContext::ALL)};
  if (pool == MempoolId_t{0, 0}) return gpumem_torch_empty_cache();
  for (int device = 0; device < devices_.load(); ++device) check(gpumem_torch_empty_pool(device, pool));
}

std::shared_ptr<torch_cuda::AllocatorState> allocator::getCheckpointState(DeviceIndex, MempoolId_t) {
  refuse("getCheckpointState");
}

torch_cuda::CheckpointDelta allocator::setCheckpointPoolState(DeviceIndex,
                                                              std::shared_ptr<torch_cuda::AllocatorState>) {
  refuse("setCheckpointPoolState");
}

void allocator::enablePeerAccess(DeviceIndex device, DeviceIndex accessed) {
  c10::cuda::CUDAGuard const guard{device};
  auto const enabled = cudaDeviceEnablePeerAccess(accessed, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
  } else {
    C10_CUDA_CHECK(enabled);
  }
}

// Copies between devices of memory that is mapped page by page need the peer form; for other memory it is as good.
cudaError_t allocator::memcpyAsync(void* to, int to_device, void const* from, int from_device, std::size_t bytes,
                                   cudaStream_t stream, bool) {
  if (to_device == from_device) return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

torch_cuda::ShareableHandle allocator::shareIpcHandle(void*) { refuse("shareIpcHandle"); }
std::shared_ptr<void> allocator::getIpcDevPtr(std::string) { refuse("getIpcDevPtr"); }

void* allocator::getBaseAllocation(void* pointer, std::size_t*) { return pointer; }

} // namespace gpumem_torch
