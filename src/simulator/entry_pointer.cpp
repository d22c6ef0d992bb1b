// Entry points for the attributes of a pointer.
// SPDX-License-Identifier: Apache-2.0
#include "entry.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

template <class T> CUresult put(void* place, T value) {
  *static_cast<T*>(place) = value;
  return CUDA_SUCCESS;
}

/// Returns the error for an attribute that is not simulated, after a sentence on stderr; for a number that is no
/// attribute, the driver's own error.
CUresult refuse(CUpointer_attribute attribute) {
  if (attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(gpumem_simulator_missing("CU_POINTER_ATTRIBUTE_P2P_TOKENS"));
}

/// Stores one attribute of a reserved address in `place`. Most attributes describe the memory that is mapped at the
/// address, if there is any. The context is null, because no context owns virtual memory.
CUresult describe_virtual(simulation const& device, CUpointer_attribute attribute, CUdeviceptr pointer, void* place) {
  mapping const* const mapping = device.mappings.find(pointer);
  bool const mapped = mapping != nullptr;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT: return put(place, CUcontext{nullptr});
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return put(place, mapped ? unsigned{CU_MEMORYTYPE_DEVICE} : 0u);
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(place, mapped ? pointer : CUdeviceptr{0});
  case CU_POINTER_ATTRIBUTE_HOST_POINTER: return put(place, static_cast<void*>(nullptr));
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put(place, 0u);
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(place, mapped ? mapping->memory->number : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(place, mapped ? mapping->memory->device() : -2);
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(place, device.mappings.reservation_of(pointer).first);
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(place, device.mappings.reservation_of(pointer).second);
  case CU_POINTER_ATTRIBUTE_MAPPED: return put(place, mapped);
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(place, mapped ? mapping->address : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(place, mapped ? mapping->bytes : std::size_t{0});
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(place, CUmemoryPool{nullptr});
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: // cuMemCreate refuses this usage
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put(place, false);
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    return put(place, mapped && mapping->memory->properties.allocFlags.gpuDirectRDMACapable != 0);
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    return put(place, mapped ? std::uint64_t{mapping->memory->properties.requestedHandleTypes} : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    return put(place, mapped ? static_cast<int>(mapping->access_of(mapping->memory->device())) : 0);
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put(place, mapped ? mapping->memory->number : std::uint64_t{0});
  default: return refuse(attribute);
  }
}

/// Stores one attribute of the memory at `pointer`; `allocation` is empty for memory that the driver does not know.
CUresult describe_pointer(simulation const& device, std::optional<allocation> const& allocation,
                          CUpointer_attribute attribute, CUdeviceptr pointer, void* place) {
  if (device.mappings.owns(pointer)) return describe_virtual(device, attribute, pointer, place);
  bool const known = allocation.has_value();
  memory_pool const* const pool = known ? device.pools.holding(pointer) : nullptr;
  bool const on_host = known && allocation->kind != memory_kind::device;
  bool const managed = known && allocation->kind == memory_kind::managed;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT: return put(place, known && pool == nullptr ? allocation->home->handle() : nullptr);
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    return put(place, !known ? 0u : unsigned(on_host && !managed ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(place, known ? pointer : CUdeviceptr{0});
  case CU_POINTER_ATTRIBUTE_HOST_POINTER: return put(place, on_host ? reinterpret_cast<void*>(pointer) : nullptr);
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put(place, 0u);
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(place, known ? allocation->buffer_id : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(place, managed);
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(place, known ? allocation->device : -2);
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(place, known ? allocation->address : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(place, known ? allocation->bytes : std::size_t{0});
  case CU_POINTER_ATTRIBUTE_MAPPED: return put(place, known);
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(place, pool != nullptr ? pool->handle : CUmemoryPool{nullptr});
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put(place, false);
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return put(place, std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    return put(place, known ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(place, known ? allocation->address : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(place, known ? allocation->granted : std::size_t{0});
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put(place, known ? allocation->number : std::uint64_t{0});
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    return put(place, pool != nullptr && (pool->properties.usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0);
  default: return refuse(attribute);
  }
}

} // namespace

namespace simulated {

std::optional<allocation> known_at(simulation const& device, std::uint64_t address) {
  allocation const* block_here = device.allocations.find(address);
  if (block_here == nullptr) return std::nullopt;
  allocation known = *block_here;
  memory_pool const* const pool = device.pools.holding(address);
  if (pool == nullptr) return known;
  pool_block const* const block = pool->find(address);
  if (block == nullptr) return std::nullopt;
  known.address = block->address;
  known.bytes = block->bytes;
  return known;
}

} // namespace simulated

extern "C" {

CUresult cuPointerGetAttribute(void* place, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return enter<"cuPointerGetAttribute", quiet>([&](simulation& device) {
    auto const held = known_at(device, pointer);
    bool const known = held || device.mappings.reservation_of(pointer).second != 0;
    if (place == nullptr || !known) return CUDA_ERROR_INVALID_VALUE;
    return describe_pointer(device, held, attribute, pointer, place);
  });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** places, CUdeviceptr pointer) {
  return enter<"cuPointerGetAttributes", quiet>([&](simulation& device) {
    if (attributes == nullptr || places == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto const held = known_at(device, pointer);
    for (unsigned i = 0; i < count; ++i)
      if (CUresult const result = describe_pointer(device, held, attributes[i], pointer, places[i]);
          result != CUDA_SUCCESS)
        return result;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
