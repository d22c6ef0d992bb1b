// Entry points of physical memory and its handles.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <new>

#include "entry_virtual.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

/// Returns success, or the driver's error for memory with these properties.
CUresult judge(const simulation& device, const CUmemAllocationProp* wish) {
  if (wish == nullptr || wish->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (wish->location.type == CU_MEM_LOCATION_TYPE_HOST || wish->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return static_cast<CUresult>(gpumem_simulator_missing("virtual memory on the host"));
  if (wish->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (wish->location.id < 0 || wish->location.id >= device.options().devices) return CUDA_ERROR_INVALID_DEVICE;
  if ((wish->requestedHandleTypes & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (wish->win32HandleMetaData != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (wish->allocFlags.usage != 0) return static_cast<CUresult>(gpumem_simulator_missing("memory of a tile pool"));
  return CUDA_SUCCESS;
}

} // namespace

namespace simulated {

std::shared_ptr<physical> resolve_memory(simulation& device, CUmemGenericAllocationHandle handle) {
  auto found = device.physicals.find(handle);
  if (!found && device.physicals.released(handle))
    device.find(finding_kind::dead_memory_handle, "use of a handle of physical memory after its release");
  return found;
}

void collect(simulation& device, const physical& which) {
  if (!device.physicals.collect(which)) return;
  device.order.forget(which);
  if (!which.foreign) device.allocations.discharge(which.device(), which.bytes);
}

} // namespace simulated

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* wish,
                     unsigned long long flags) {
  return enter_virtual<"cuMemCreate", unsafe_in_capture>([&](simulation& device) {
    if (handle == nullptr || bytes == 0 || !granular(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = judge(device, wish); refused != CUDA_SUCCESS) return refused;
    if (device.faults.at_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
    device.pools.collect(device);
    if (!device.allocations.charge(wish->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    try {
      *handle = device.physicals.create(*wish, bytes, device.order.next_block_number())->handle;
    } catch (const std::bad_alloc&) {
      device.allocations.discharge(wish->location.id, bytes);
      throw;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return enter_virtual<"cuMemRelease", unsafe_in_capture>([&](simulation& device) {
    const auto memory = resolve_memory(device, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    --memory->references;
    collect(device, *memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  return enter_virtual<"cuMemRetainAllocationHandle", quiet>([&](simulation& device) {
    const mapping* const at = device.mappings.find(reinterpret_cast<std::uint64_t>(pointer));
    if (handle == nullptr || at == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++at->of->references;
    *handle = at->of->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* wish,
                                       CUmemAllocationGranularity_flags option) {
  return enter_virtual<"cuMemGetAllocationGranularity", quiet>([&](simulation& device) {
    if (bytes == nullptr ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = judge(device, wish); refused != CUDA_SUCCESS) return refused;
    *bytes = page_granularity;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return enter_virtual<"cuMemGetAllocationPropertiesFromHandle", quiet>([&](simulation& device) {
    const auto memory = resolve_memory(device, handle);
    if (properties == nullptr || !memory) return CUDA_ERROR_INVALID_VALUE;
    *properties = memory->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return enter_virtual<"cuMemExportToShareableHandle">([&](simulation& device) {
    const auto memory = resolve_memory(device, handle);
    if (shareable == nullptr || !memory || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((memory->properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    const int named = device.physicals.share(*memory);
    if (named == -1) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareable) = named;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return enter_virtual<"cuMemImportFromShareableHandle">([&](simulation& device) {
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const int descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const auto memory = device.physicals.import(descriptor, properties, device.order.next_block_number());
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    *handle = memory->handle;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
