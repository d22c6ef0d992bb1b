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
CUresult check_access(simulation const& device, CUmemAccessDesc const& access) {
  if (access.location.type == CU_MEM_LOCATION_TYPE_HOST || access.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return static_cast<CUresult>(gpumem_simulator_missing("host access to virtual memory"));
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (access.location.id < 0 || access.location.id >= device.options().devices) return CUDA_ERROR_INVALID_DEVICE;
  bool const known = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                     access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void give_access(simulation& device, actor const& actor, mapping& mapping, CUmemAccessDesc const& access) {
  CUmemAccess_flags const before = mapping.access_of(access.location.id);
  if (access.flags < before) device.order.check_unmap(actor, mapping);
  mapping.access[access.location.id] = access.flags;
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
    return device.mappings.unreserve(pointer, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    auto const covered_mappings = device.mappings.filling(pointer, bytes);
    if (covered_mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
    actor const actor = device.host_point("cuMemUnmap");
    for (mapping const* at : covered_mappings) {
      device.order.check_unmap(actor, *at);
      device.order.unmapped(actor, *at);
      std::shared_ptr<physical> const memory = at->memory;
      device.mappings.unmap(*at);
      collect(device, *memory);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, CUmemAccessDesc const* rights, size_t count) {
  return enter_virtual<"cuMemSetAccess", unsafe_in_capture>([&](simulation& device) {
    if (rights == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      if (CUresult const refused = check_access(device, rights[i]); refused != CUDA_SUCCESS) return refused;
    auto const all = device.mappings.filling(pointer, bytes);
    actor const actor = device.host_point("cuMemSetAccess");
    for (mapping* at : all)
      for (size_t i = 0; i < count; ++i) give_access(device, actor, *at, rights[i]);
    return all.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, CUmemLocation const* location, CUdeviceptr pointer) {
  return enter_virtual<"cuMemGetAccess", quiet>([&](simulation& device) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult const refused = check_access(device, {*location, CU_MEM_ACCESS_FLAGS_PROT_NONE});
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
CUresult check_properties(simulation const& device, CUmemAllocationProp const* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
      properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return static_cast<CUresult>(gpumem_simulator_missing("virtual memory on the host"));
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.id < 0 || properties->location.id >= device.options().devices)
    return CUDA_ERROR_INVALID_DEVICE;
  if ((properties->requestedHandleTypes & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->win32HandleMetaData != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (properties->allocFlags.usage != 0)
    return static_cast<CUresult>(gpumem_simulator_missing("memory of a tile pool"));
  return CUDA_SUCCESS;
}

} // namespace

namespace simulated {

std::shared_ptr<physical> resolve_memory(simulation& device, CUmemGenericAllocationHandle handle) {
  auto found = device.physicals.find(handle);
  if (!found && device.physicals.released(handle))
    device.report_finding(finding_kind::dead_memory_handle, "use of a handle of physical memory after its release");
  return found;
}

void collect(simulation& device, physical const& memory) {
  if (!device.physicals.collect(memory)) return;
  device.order.forget(memory);
  if (!memory.foreign) device.allocations.discharge(memory.device(), memory.bytes);
}

} // namespace simulated

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, CUmemAllocationProp const* access,
                     unsigned long long flags) {
  return enter_virtual<"cuMemCreate", unsafe_in_capture>([&](simulation& device) {
    if (handle == nullptr || bytes == 0 || !granular(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const refused = check_properties(device, access); refused != CUDA_SUCCESS) return refused;
    if (device.faults.at_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
    device.pools.collect(device);
    if (!device.allocations.charge(access->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    try {
      *handle = device.physicals.create(*access, bytes, device.order.next_block_number())->handle;
    } catch (std::bad_alloc const&) {
      device.allocations.discharge(access->location.id, bytes);
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
    ++at->memory->references;
    *handle = at->memory->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, CUmemAllocationProp const* access,
                                       CUmemAllocationGranularity_flags option) {
  return enter_virtual<"cuMemGetAllocationGranularity", quiet>([&](simulation& device) {
    if (bytes == nullptr ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
      return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const refused = check_properties(device, access); refused != CUDA_SUCCESS) return refused;
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
