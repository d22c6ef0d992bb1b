// Entry points that allocate and free memory, and describe allocations.
// SPDX-License-Identifier: Apache-2.0
#include "entry.hpp"

using namespace simulated;

namespace {

/// Allocates in the current context. Returns null and sets `error` if `bytes` is 0, there is no memory, or a failure
/// was injected.
allocation const* take(simulation& device, memory_kind kind, std::size_t bytes, CUresult& error) {
  context& home = *device.current();
  error = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  if (error != CUDA_SUCCESS) return nullptr;
  if (device.faults.at_allocation()) {
    error = CUDA_ERROR_OUT_OF_MEMORY;
    return nullptr;
  }
  allocation const* made =
      device.allocations.allocate(kind, home.device, &home, bytes, device.order.next_block_number());
  if (made == nullptr) {
    error = CUDA_ERROR_OUT_OF_MEMORY;
    return nullptr;
  }
  device.order.fresh(made->address, made->granted);
  return made;
}

/// Frees as the driver does: first waits for all work of the context. Programs must not rely on that wait for the freed
/// memory, so for the checker it orders the host after the work only once the memory is freed.
CUresult give_back(simulation& device, std::uint64_t address, bool host_kind, char const* call)
    GPUMEM_REQUIRES(simulation_mutex) {
  allocation const* allocation = device.allocations.find(address);
  if (allocation == nullptr || allocation->address != address ||
      (allocation->kind == memory_kind::pinned) != host_kind || allocation->kind == memory_kind::registered)
    return CUDA_ERROR_INVALID_VALUE;
  ++device.implicit_waits;
  vector_clock order_at_call = allocation->home->ended;
  for (stream_ptr const& stream : allocation->home->streams) order_at_call.join(stream->order);
  if (CUresult const result = device.wait_for_all(*allocation->home, call); result != CUDA_SUCCESS) return result;
  allocation = device.allocations.find(address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  device.order.removed(device.host_point(call), address, allocation->granted, true);
  if (allocation->kind == memory_kind::managed) device.advice.forget(address, allocation->granted);
  device.allocations.free(address);
  device.host.join(order_at_call);
  return CUDA_SUCCESS;
}

CUresult allocate_host(simulation& device, void** pointer, std::size_t bytes) {
  CUresult error;
  allocation const* made = take(device, memory_kind::pinned, bytes, error);
  if (made == nullptr) return error;
  *pointer = reinterpret_cast<void*>(made->address);
  return CUDA_SUCCESS;
}

} // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter<"cuMemAlloc", (needs_context | unsafe_in_capture)>([&](simulation& device) {
    CUresult error;
    allocation const* made = take(device, memory_kind::device, bytes, error);
    if (made != nullptr) *pointer = made->address;
    return error;
  });
}

CUresult cuMemFree(CUdeviceptr pointer) {
  return enter<"cuMemFree", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
        if (pointer == 0) return CUDA_SUCCESS;
        if (memory_pool* const pool = device.pools.holding(pointer))
          return free_pooled_by_host(device, *pool, pointer, "cuMemFree");
        return give_back(device, pointer, false, "cuMemFree");
      });
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter<"cuMemAllocManaged", (needs_context | unsafe_in_capture)>([&](simulation& device) {
    CUresult error;
    allocation const* made = take(device, memory_kind::managed, bytes, error);
    if (made != nullptr) *pointer = made->address;
    return error;
  });
}

CUresult cuMemAllocHost(void** pointer, size_t bytes) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter<"cuMemAllocHost", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return allocate_host(device, pointer, bytes); });
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter<"cuMemHostAlloc", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return allocate_host(device, pointer, bytes); });
}

CUresult cuMemFreeHost(void* pointer) {
  return enter<"cuMemFreeHost", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
        if (pointer == nullptr) return CUDA_SUCCESS;
        if (device.pools.holding(reinterpret_cast<std::uint64_t>(pointer)) != nullptr) return CUDA_ERROR_INVALID_VALUE;
        return give_back(device, reinterpret_cast<std::uint64_t>(pointer), true, "cuMemFreeHost");
      });
}

CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned) {
  return enter<"cuMemHostRegister", (needs_context | unsafe_in_capture)>([&](simulation& device) {
    if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (device.allocations.find(reinterpret_cast<std::uint64_t>(pointer)) != nullptr)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    context& home = *device.current();
    device.allocations.register_host(pointer, bytes, home.device, &home, device.order.next_block_number());
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* pointer) {
  return enter<"cuMemHostUnregister", (needs_context | unsafe_in_capture)>([&](simulation& device) {
    auto const address = reinterpret_cast<std::uint64_t>(pointer);
    allocation const* allocation = device.allocations.find(address);
    if (allocation == nullptr || allocation->address != address || allocation->kind != memory_kind::registered)
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    device.order.fresh(address, allocation->bytes);
    device.allocations.free(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* pointer, void* host, unsigned) {
  return enter<"cuMemHostGetDevicePointer", (needs_context | quiet)>([&](simulation& device) {
    auto const address = reinterpret_cast<std::uint64_t>(host);
    allocation const* allocation = device.allocations.find(address);
    if (pointer == nullptr || allocation == nullptr || allocation->kind == memory_kind::device)
      return CUDA_ERROR_INVALID_VALUE;
    *pointer = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  return enter<"cuMemHostGetFlags", (needs_context | quiet)>([&](simulation& device) {
    allocation const* allocation = device.allocations.find(reinterpret_cast<std::uint64_t>(host));
    if (flags == nullptr || allocation == nullptr || allocation->kind != memory_kind::pinned)
      return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  return enter<"cuMemGetInfo", needs_context>([&](simulation& device) {
    device.pools.collect(device);
    memory const& block_here = device.allocations;
    if (free != nullptr) *free = block_here.capacity() - block_here.used(device.current()->device);
    if (total != nullptr) *total = block_here.capacity();
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  return enter<"cuMemGetAddressRange", (needs_context | quiet)>([&](simulation& device) {
    auto held = known_at(device, pointer);
    if (mapping const* at = device.mappings.find(pointer); at != nullptr)
      held = allocation{at->address, at->bytes, at->bytes, memory_kind::device, at->memory->device(), nullptr, 0, 0};
    if (!held) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = held->address;
    if (bytes != nullptr) *bytes = held->bytes;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
