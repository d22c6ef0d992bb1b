// Functions of memory and memory pools that take no stream.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <iterator>
#include <limits>

#include "calls.hpp"

using namespace simulated_runtime;

namespace {

constexpr std::size_t pitch_unit = 512;

/// Allocates by `take`. An allocation of 0 bytes succeeds with a null pointer.
template <class Allocate> cudaError_t allocate(void** pointer, std::size_t bytes, Allocate&& take) {
  return in_context([&](driver_table const& cu) {
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pointer = nullptr;
    return bytes == 0 ? CUDA_SUCCESS : take(cu);
  });
}

/// Calls `body(driver, there, here)` with the primary contexts of the devices of a copy.
template <class Body> cudaError_t between(int to_device, int from_device, Body&& body) {
  return in_context([&](driver_table const& cu) {
    CUcontext there = nullptr;
    CUcontext here = nullptr;
    CUresult result = cu.cuDevicePrimaryCtxRetain(&there, to_device);
    if (result == CUDA_SUCCESS) result = cu.cuDevicePrimaryCtxRetain(&here, from_device);
    return result == CUDA_SUCCESS ? body(cu, there, here) : result;
  });
}

} // namespace

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return allocate(pointer, bytes,
                  [&](driver_table const& cu) { return cu.cuMemAlloc(as<CUdeviceptr>(pointer), bytes); });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return allocate(pointer, bytes, [&](driver_table const& cu) { return cu.cuMemHostAlloc(pointer, bytes, flags); });
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  return pass<&driver_table::cuMemAllocManaged>(as<CUdeviceptr>(pointer), bytes, flags);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  if (pitch == nullptr) return keep(cudaErrorInvalidValue);
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  if (width > most - pitch_unit || (height != 0 && width + pitch_unit > most / height))
    return keep(cudaErrorMemoryAllocation);
  *pitch = (width + pitch_unit - 1) / pitch_unit * pitch_unit;
  return cudaMalloc(pointer, *pitch * height);
}

cudaError_t cudaFree(void* pointer) { return pass<&driver_table::cuMemFree>(address(pointer)); }
cudaError_t cudaFreeHost(void* pointer) { return pass<&driver_table::cuMemFreeHost>(pointer); }

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return pass<&driver_table::cuMemHostRegister>(pointer, bytes, flags);
}
cudaError_t cudaHostUnregister(void* pointer) { return pass<&driver_table::cuMemHostUnregister>(pointer); }
cudaError_t cudaHostGetDevicePointer(void** pointer, void* host, unsigned flags) {
  return pass<&driver_table::cuMemHostGetDevicePointer>(as<CUdeviceptr>(pointer), host, flags);
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  return pass<&driver_table::cuMemHostGetFlags>(flags, host);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return pass<&driver_table::cuMemGetInfo>(free, total); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* pointer) {
  return in_context([&](driver_table const& cu) {
    if (attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *attributes = {};
    unsigned type = 0;
    unsigned char managed = 0;
    CUpointer_attribute queried_attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* places[] = {&type, &managed, &attributes->device, &attributes->devicePointer, &attributes->hostPointer};
    CUresult const result =
        cu.cuPointerGetAttributes(std::size(queried_attributes), queried_attributes, places, address(pointer));
    if (result != CUDA_SUCCESS) return result;
    attributes->type = managed != 0                   ? cudaMemoryTypeManaged
                       : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                       : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                                      : cudaMemoryTypeUnregistered;
    if (attributes->type == cudaMemoryTypeUnregistered) attributes->hostPointer = const_cast<void*>(pointer);
    return CUDA_SUCCESS;
  });
}

cudaError_t cudaMemAdvise(void const* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location) {
  return pass<&driver_table::cuMemAdvise>(address(pointer), bytes, static_cast<CUmem_advise>(advice),
                                          location_of(location));
}

cudaError_t cudaMemRangeGetAttribute(void* place, size_t size, cudaMemRangeAttribute attribute, void const* pointer,
                                     size_t bytes) {
  return pass<&driver_table::cuMemRangeGetAttribute>(place, size, static_cast<CUmem_range_attribute>(attribute),
                                                     address(pointer), bytes);
}

cudaError_t cudaMemRangeGetAttributes(void** places, size_t* sizes, cudaMemRangeAttribute* attributes, size_t count,
                                      void const* pointer, size_t bytes) {
  return pass<&driver_table::cuMemRangeGetAttributes>(places, sizes, as<CUmem_range_attribute>(attributes), count,
                                                      address(pointer), bytes);
}

cudaError_t cudaMemcpyPeer(void* target, int to_device, void const* source, int from_device, size_t bytes) {
  return between(to_device, from_device, [&](driver_table const& cu, CUcontext there, CUcontext here) {
    return cu.cuMemcpyPeer(address(target), there, address(source), here, bytes);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* target, int to_device, void const* source, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return between(to_device, from_device, [&](driver_table const& cu, CUcontext there, CUcontext here) {
    return cu.cuMemcpyPeerAsync(address(target), there, address(source), here, bytes, stream);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return pass_plain<&driver_table::cuDeviceGetDefaultMemPool>(pool, device);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return pass_plain<&driver_table::cuDeviceGetMemPool>(pool, device);
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return pass_plain<&driver_table::cuDeviceSetMemPool>(device, pool);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, cudaMemPoolProps const* properties) {
  return pass<&driver_table::cuMemPoolCreate>(pool, as<CUmemPoolProps const>(properties));
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return pass<&driver_table::cuMemPoolDestroy>(pool); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  return pass<&driver_table::cuMemPoolTrimTo>(pool, bytes);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return pass<&driver_table::cuMemPoolSetAttribute>(pool, static_cast<CUmemPool_attribute>(attribute), value);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return pass<&driver_table::cuMemPoolGetAttribute>(pool, static_cast<CUmemPool_attribute>(attribute), value);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, cudaMemAccessDesc const* rights, size_t count) {
  return pass<&driver_table::cuMemPoolSetAccess>(pool, as<CUmemAccessDesc const>(rights), count);
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* location) {
  return pass<&driver_table::cuMemPoolGetAccess>(as<CUmemAccess_flags>(flags), pool, as<CUmemLocation>(location));
}
cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType type) {
  return pass<&driver_table::cuMemGetDefaultMemPool>(pool, as<CUmemLocation>(location),
                                                     static_cast<CUmemAllocationType>(type));
}
cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType type) {
  return pass<&driver_table::cuMemGetMemPool>(pool, as<CUmemLocation>(location),
                                              static_cast<CUmemAllocationType>(type));
}
cudaError_t cudaMemSetMemPool(cudaMemLocation* location, cudaMemAllocationType type, cudaMemPool_t pool) {
  return pass<&driver_table::cuMemSetMemPool>(as<CUmemLocation>(location), static_cast<CUmemAllocationType>(type),
                                              pool);
}
