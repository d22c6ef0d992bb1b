// PyTorch's allocator over gpumem: memory pools of PyTorch, graphs, and access between devices.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace gpumem_torch {
namespace {

// The allocator that a torch.cuda.MemPool names as the source of its memory. Never destroyed, since blocks of the pool
// may be freed when the process ends.
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
  // The allocator `from` knows no stream order. So this function waits until the stream's work no longer uses the
  // memory.
  static void free(void* context, void* stream, void* pointer, std::size_t, std::size_t) {
    auto const& self = *static_cast<segment_source*>(context);
    try {
      c10::cuda::CUDAGuard const guard{self.device};
      static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
      self.from->raw_delete(pointer);
    } catch (std::exception const&) {} // the allocator keeps the memory
  }
};

// Runs the work. If the work throws, throws c10::Error with the text of that exception.
template <class Work> void run(Work work) {
  std::string text;
  try {
    return work();
  } catch (std::exception const& error) { text = error.what(); }
  TORCH_CHECK(false, text);
}

void retain(DeviceIndex device, MempoolId_t pool, std::shared_ptr<torch_cuda::CUDAAllocator> owned,
            torch_cuda::CUDAAllocator* allocator) {
  if (!allocator) return check(gpumem_torch_retain_pool(device, pool, nullptr));
  auto source = std::make_unique<segment_source>(segment_source{std::move(owned), allocator, device});
  gpumem_callbacks functions{};
  functions.size = sizeof functions;
  functions.context = source.get();
  functions.allocate = &segment_source::allocate;
  functions.free = &segment_source::free;
  check(gpumem_torch_retain_pool(device, pool, &functions));
  static_cast<void>(source.release());
}

} // namespace

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
#else
void allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* segments) {
  retain(device, pool, nullptr, segments);
}

void allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool) {
  check(gpumem_torch_use_pool_on_out_of_memory(device, pool, 1));
}
#endif

#if GPUMEM_TORCH_AT_LEAST(10)
void allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) { check(gpumem_torch_set_pool_unsplit(device, pool)); }
#endif

void allocator::emptyCache(MempoolId_t pool) {
  call_context const of_pages{history_.gather(torch_cuda::RecordContext::ALL)};
  if (pool == MempoolId_t{0, 0}) {
    for (int device = 0; device < devices_.load(); ++device) ++states_[device].synchronizations;
    return gpumem_torch_empty_cache();
  }
  for (int device = 0; device < devices_.load(); ++device) check(gpumem_torch_empty_pool(device, pool));
}

// The live blocks of a memory pool at one moment, to which PyTorch can return later.
struct checkpoint final : torch_cuda::AllocatorState {
  MempoolId_t pool;
  std::vector<gpumem_range> live;
};

std::vector<gpumem_range> live_of(DeviceIndex device, MempoolId_t pool) {
  struct collector {
    MempoolId_t pool;
    std::vector<gpumem_range> live;
  } to{pool, {}};
  check(gpumem_torch_visit_ranges(
      device,
      [](void* context, gpumem_range const* range, unsigned long long first, unsigned long long second) {
        auto& all = *static_cast<collector*>(context);
        if (range->live && all.pool == MempoolId_t{first, second}) all.live.push_back(*range);
      },
      &to));
  return std::move(to.live);
}

bool allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         std::unordered_set<void*> const& expected) {
  int count = 0;
  TORCH_CHECK(gpumem_torch_pool_use_count(device, pool, &count) == GPUMEM_GRANTED, "Could not find pool of id");
  auto const live = live_of(device, pool);
  auto const is_expected = [&](gpumem_range const& one) { return expected.count(one.base) > 0; };
  return live.size() == expected.size() && std::all_of(live.begin(), live.end(), is_expected);
}

std::shared_ptr<torch_cuda::AllocatorState> allocator::getCheckpointState(DeviceIndex device, MempoolId_t pool) {
  int count = 0;
  TORCH_CHECK(gpumem_torch_pool_use_count(device, pool, &count) == GPUMEM_GRANTED, "Could not find pool of id");
  TORCH_CHECK(count > 0, "Not expected to checkpoint freeable graph");
  auto state = std::make_shared<checkpoint>();
  state->pool = pool;
  state->live = live_of(device, pool);
  return state;
}

torch_cuda::CheckpointDelta allocator::setCheckpointPoolState(DeviceIndex device,
                                                              std::shared_ptr<torch_cuda::AllocatorState> state) {
  auto* const saved = dynamic_cast<checkpoint*>(state.get());
  TORCH_CHECK(saved, "Expected PrivatePoolState");
  struct collector {
    c10::Device device;
    torch_cuda::CheckpointDelta delta;
  } to{c10::Device(c10::DeviceType::CUDA, device), {}};
  check(gpumem_torch_restore_pool(
      device, saved->pool, saved->live.data(), saved->live.size(),
      [](void* context, gpumem_range const* range, int now) {
        auto& all = *static_cast<collector*>(context);
        if (now) {
          all.delta.dataptrs_allocd.emplace_back(range->base, range->base, instance().raw_deleter(), all.device);
        } else {
          all.delta.ptrs_freed.push_back(range->base);
        }
      },
      &to));
  return std::move(to.delta);
}

void allocator::enablePeerAccess(DeviceIndex device, DeviceIndex accessed) {
  {
    c10::cuda::CUDAGuard const guard{device};
    auto const enabled = cudaDeviceEnablePeerAccess(accessed, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      C10_CUDA_CHECK(enabled);
    }
  }
  check(gpumem_torch_open_to(device, accessed)); // for memory that is mapped page by page
}

// Between devices, memory that is mapped page by page needs the peer form of a copy. That form is as good for other
// memory.
cudaError_t allocator::memcpyAsync(void* target, int to_device, void const* source, int from_device, std::size_t bytes,
                                   cudaStream_t stream, bool) {
  if (to_device == from_device) return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(target, to_device, source, from_device, bytes, stream);
}

void* allocator::getBaseAllocation(void* pointer, std::size_t* bytes) {
  auto const owner = device_of(pointer);
  TORCH_CHECK(owner >= 0, "invalid device pointer: ", pointer);
  struct finder {
    void* pointer;
    void* base;
    std::size_t bytes;
  } found{pointer, nullptr, 0};
  check(gpumem_torch_visit_ranges(
      owner,
      [](void* context, gpumem_range const* range, unsigned long long, unsigned long long) {
        auto& to = *static_cast<finder*>(context);
        if (range->base == to.pointer) to = {to.pointer, range->region, range->region_bytes};
      },
      &found));
  TORCH_CHECK(found.base, "invalid device pointer: ", pointer);
  if (bytes) *bytes = found.bytes;
  return found.base;
}

} // namespace gpumem_torch
