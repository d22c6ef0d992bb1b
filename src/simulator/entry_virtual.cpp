// The driver functions of virtual memory: addresses, mappings, physical memory and its handles.
// SPDX-License-Identifier: Apache-2.0
#include "entry_virtual.hpp"

#include <cstdint>
#include <new>

#include "stubs.hpp"

using namespace simulated;

namespace {

constexpr std::size_t host_page = 4096;

/// Returns success if the requested access is valid, otherwise the driver's error.
CUresult judge(simulation const& device, CUmemAccessDesc const& wish) {
  if (wish.location.type == CU_MEM_LOCATION_TYPE_HOST || wish.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return static_cast<CUresult>(gpumem_simulator_missing("host access to virtual memory"));
  if (wish.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (wish.location.id < 0 || wish.location.id >= device.options().devices) return CUDA_ERROR_INVALID_DEVICE;
  bool const known = wish.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || wish.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                     wish.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void give_access(simulation& device, actor const& who, mapping& at, CUmemAccessDesc const& wish) {
  CUmemAccess_flags const before = at.access_of(wish.location.id);
  if (wish.flags < before) device.order.left(who, at);
  at.access[wish.location.id] = wish.flags;
}

} // namespace

extern "C" {

/// Ignores the address that the caller suggests (`hint`).
CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return enter_virtual<"cuMemAddressReserve", unsafe_in_capture>([&](simulation& device) {
    if (pointer == nullptr || bytes == 0 || bytes % host_page != 0 || hint % host_page != 0 || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    *pointer = device.mappings.reserve(bytes, std::max(alignment, page_granularity));
    return *pointer != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  return enter_virtual<"cuMemAddressFree", unsafe_in_capture>([&](simulation& device) {
    return device.mappings.release(pointer, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return enter_virtual<"cuMemMap", unsafe_in_capture>([&](simulation& device) {
    auto const memory = resolve_memory(device, handle);
    if (!memory || flags != 0 || offset != 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0 || !granular(pointer) || !granular(bytes) || bytes > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
    return device.mappings.map(pointer, bytes, memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  return enter_virtual<"cuMemUnmap", unsafe_in_capture>([&](simulation& device) {
    auto const all = device.mappings.filling(pointer, bytes);
    if (all.empty()) return CUDA_ERROR_INVALID_VALUE;
    actor const who = device.host_point("cuMemUnmap");
    for (mapping const* at : all) {
      device.order.left(who, *at);
      device.order.unmapped(who, *at);
      std::shared_ptr<physical> const memory = at->of;
      device.mappings.unmap(*at);
      collect(device, *memory);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, CUmemAccessDesc const* wishes, size_t count) {
  return enter_virtual<"cuMemSetAccess", unsafe_in_capture>([&](simulation& device) {
    if (wishes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      if (CUresult const refused = judge(device, wishes[i]); refused != CUDA_SUCCESS) return refused;
    auto const all = device.mappings.filling(pointer, bytes);
    actor const who = device.host_point("cuMemSetAccess");
    for (mapping* at : all)
      for (size_t i = 0; i < count; ++i) give_access(device, who, *at, wishes[i]);
    return all.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, CUmemLocation const* location, CUdeviceptr pointer) {
  return enter_virtual<"cuMemGetAccess", quiet>([&](simulation& device) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult const refused = judge(device, {*location, CU_MEM_ACCESS_FLAGS_PROT_NONE});
    if (refused != CUDA_SUCCESS) return refused;
    mapping const* const at = device.mappings.find(pointer);
    if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = at->access_of(location->id);
    return CUDA_SUCCESS;
  });
}

} // extern "C"

namespace {

/// Returns success, or the driver's error for memory with these properties.
CUresult judge(simulation const& device, CUmemAllocationProp const* wish) {
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

void collect(simulation& device, physical const& which) {
  if (!device.physicals.collect(which)) return;
  device.order.forget(which);
  if (!which.foreign) device.allocations.discharge(which.device(), which.bytes);
}

} // namespace simulated

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, CUmemAllocationProp const* wish,
                     unsigned long long flags) {
  return enter_virtual<"cuMemCreate", unsafe_in_capture>([&](simulation& device) {
    if (handle == nullptr || bytes == 0 || !granular(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const refused = judge(device, wish); refused != CUDA_SUCCESS) return refused;
    if (device.faults.at_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
    device.pools.collect(device);
    if (!device.allocations.charge(wish->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    try {
      *handle = device.physicals.create(*wish, bytes, device.order.next_block_number())->handle;
    } catch (std::bad_alloc const&) {
      device.allocations.discharge(wish->location.id, bytes);
      throw;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return enter_virtual<"cuMemRelease", unsafe_in_capture>([&](simulation& device) {
    auto const memory = resolve_memory(device, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    --memory->references;
    collect(device, *memory);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
  return enter_virtual<"cuMemRetainAllocationHandle", quiet>([&](simulation& device) {
    mapping const* const at = device.mappings.find(reinterpret_cast<std::uint64_t>(pointer));
    if (handle == nullptr || at == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++at->of->references;
    *handle = at->of->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, CUmemAllocationProp const* wish,
                                       CUmemAllocationGranularity_flags option) {
  return enter_virtual<"cuMemGetAllocationGranularity", quiet>([&](simulation& device) {
    if (bytes == nullptr ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
      return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const refused = judge(device, wish); refused != CUDA_SUCCESS) return refused;
    *bytes = page_granularity;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return enter_virtual<"cuMemGetAllocationPropertiesFromHandle", quiet>([&](simulation& device) {
    auto const memory = resolve_memory(device, handle);
    if (properties == nullptr || !memory) return CUDA_ERROR_INVALID_VALUE;
    *properties = memory->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return enter_virtual<"cuMemExportToShareableHandle">([&](simulation& device) {
    auto const memory = resolve_memory(device, handle);
    if (shareable == nullptr || !memory || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((memory->properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    int const named = device.physicals.share(*memory);
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
    int const descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    auto const memory = device.physicals.import(descriptor, properties, device.order.next_block_number());
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    *handle = memory->handle;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
