// The driver functions that reserve addresses and map physical memory at them.
// SPDX-License-Identifier: Apache-2.0
#include "entry_virtual.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

constexpr std::size_t host_page = 4096;

/// Returns success if the requested access is valid, otherwise the driver's error.
CUresult judge(const simulation& device, const CUmemAccessDesc& wish) {
  if (wish.location.type == CU_MEM_LOCATION_TYPE_HOST || wish.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return static_cast<CUresult>(gpumem_simulator_missing("host access to virtual memory"));
  if (wish.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (wish.location.id < 0 || wish.location.id >= device.options().devices) return CUDA_ERROR_INVALID_DEVICE;
  const bool known = wish.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || wish.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                     wish.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void give_access(simulation& device, const actor& who, mapping& at, const CUmemAccessDesc& wish) {
  const CUmemAccess_flags before = at.access_of(wish.location.id);
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
    const auto memory = resolve_memory(device, handle);
    if (!memory || flags != 0 || offset != 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0 || !granular(pointer) || !granular(bytes) || bytes > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
    return device.mappings.map(pointer, bytes, memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  return enter_virtual<"cuMemUnmap", unsafe_in_capture>([&](simulation& device) {
    const auto all = device.mappings.filling(pointer, bytes);
    if (all.empty()) return CUDA_ERROR_INVALID_VALUE;
    const actor who = device.host_point("cuMemUnmap");
    for (const mapping* at : all) {
      device.order.left(who, *at);
      device.order.unmapped(who, *at);
      const std::shared_ptr<physical> memory = at->of;
      device.mappings.unmap(*at);
      collect(device, *memory);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* wishes, size_t count) {
  return enter_virtual<"cuMemSetAccess", unsafe_in_capture>([&](simulation& device) {
    if (wishes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      if (const CUresult refused = judge(device, wishes[i]); refused != CUDA_SUCCESS) return refused;
    const auto all = device.mappings.filling(pointer, bytes);
    const actor who = device.host_point("cuMemSetAccess");
    for (mapping* at : all)
      for (size_t i = 0; i < count; ++i) give_access(device, who, *at, wishes[i]);
    return all.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  return enter_virtual<"cuMemGetAccess", quiet>([&](simulation& device) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult refused = judge(device, {*location, CU_MEM_ACCESS_FLAGS_PROT_NONE});
    if (refused != CUDA_SUCCESS) return refused;
    const mapping* const at = device.mappings.find(pointer);
    if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = at->access_of(location->id);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
