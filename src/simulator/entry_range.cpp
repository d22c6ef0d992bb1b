// The driver functions for prefetches of memory, and for advice about ranges of memory.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <span>

#include "entry.hpp"

using namespace simulated;

namespace {

/// Returns whether one managed allocation, or one block of a managed pool, holds all of the bytes.
bool is_managed(simulation const& device, CUdeviceptr pointer, size_t bytes) {
  auto const held = known_at(device, pointer);
  return held && held->kind == memory_kind::managed && bytes != 0 && bytes <= held->bytes - (pointer - held->address);
}

/// Returns whether the bytes are host memory that the driver does not know, and the devices can access such memory.
bool is_pageable(simulation const& device, CUdeviceptr pointer, size_t bytes) {
  if (device.options().pageable_memory == 0 || pointer == 0 || bytes == 0) return false;
  return !device.allocations.owns(pointer) && !device.mappings.owns(pointer) && !known_at(device, pointer);
}

/// Calls `set(address, bytes)` with the whole host pages that hold the bytes, because advice is for whole pages.
template <class Set> void for_pages(CUdeviceptr pointer, size_t bytes, Set&& set) {
  auto const page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  auto const begin = pointer / page * page;
  set(begin, (pointer + bytes + page - 1) / page * page - begin);
}

constexpr CUmemLocation no_location{CU_MEM_LOCATION_TYPE_INVALID, 0};
constexpr CUmemLocation any_location{CU_MEM_LOCATION_TYPE_HOST, 0};

/// Converts the "current NUMA node" to node 0: the simulated host has only one.
CUmemLocation resolved(CUmemLocation const& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  return location;
}

int number_of(CUmemLocation const& place) {
  if (place.type == CU_MEM_LOCATION_TYPE_INVALID) return CU_DEVICE_INVALID;
  return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : int{CU_DEVICE_CPU};
}

/// Returns success, or the driver's error for a location to which memory cannot be moved.
CUresult check_location(simulation const& device, CUmemLocation const& location) {
  switch (location.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return location.id >= 0 && location.id < device.options().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA: return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

/// Stores one attribute of the bytes, which are managed or pageable.
CUresult describe_range(memory_advice const& advice, void* place, size_t size, CUmem_range_attribute attribute,
                        CUdeviceptr pointer, size_t bytes) {
  constexpr std::size_t unit = sizeof(int);
  static_assert(sizeof(CUmemLocationType) == unit);
  bool const is_list = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
  if (place == nullptr || size == 0 || (is_list ? size % unit : size - unit) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::span const answer(static_cast<int*>(place), size / unit);
  switch (attribute) {
  case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
    answer[0] = advice.read_mostly.of(pointer, bytes).type != CU_MEM_LOCATION_TYPE_INVALID;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    answer[0] = number_of(advice.preferred.of(pointer, bytes));
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    answer[0] = number_of(advice.prefetched.of(pointer, bytes));
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    answer[0] = advice.preferred.of(pointer, bytes).type;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    answer[0] = advice.preferred.of(pointer, bytes).id;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
    answer[0] = advice.prefetched.of(pointer, bytes).type;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
    answer[0] = advice.prefetched.of(pointer, bytes).id;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
    std::fill(answer.begin(), answer.end(), int{CU_DEVICE_INVALID});
    auto next = answer.begin();
    for (auto const& [device, ranges] : advice.accessed_by)
      if (next != answer.end() && ranges.of(pointer, bytes).type != CU_MEM_LOCATION_TYPE_INVALID) *next++ = device;
    return CUDA_SUCCESS;
  }
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

} // namespace

extern "C" {

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                            CUstream stream) {
  return enter_on<"cuMemPrefetchAsync">(stream, [&](simulation& device, stream_ptr const& stream) {
    if (flags != 0 || !is_managed(device, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const result = check_location(device, location); result != CUDA_SUCCESS) return result;
    if (device.options().concurrent_managed_access == 0) return CUDA_ERROR_INVALID_DEVICE;
    if (stream->capturing) { // a graph cannot hold a prefetch
      device.invalidate(*stream->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    device.advice.prefetched.set(pointer, bytes, resolved(location));
    operation work;
    work.action = "prefetch";
    return device.enqueue(stream, std::move(work));
  });
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return enter<"cuMemAdvise">([&](simulation& device) {
    bool const known = is_managed(device, pointer, bytes) || is_pageable(device, pointer, bytes);
    if (!known || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
      return CUDA_ERROR_INVALID_VALUE;
    auto const note = [&](location_map& in, CUmemLocation const& where) {
      for_pages(pointer, bytes, [&](auto begin, auto length) { in.set(begin, length, where); });
      return CUDA_SUCCESS;
    };
    memory_advice& memory_advice_map = device.advice;
    switch (advice) { // these three cases ignore `location`
    case CU_MEM_ADVISE_SET_READ_MOSTLY: return note(memory_advice_map.read_mostly, any_location);
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: return note(memory_advice_map.read_mostly, no_location);
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: return note(memory_advice_map.preferred, no_location);
    default: break;
    }
    if (CUresult const result = check_location(device, location); result != CUDA_SUCCESS) return result;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && device.options().concurrent_managed_access == 0)
      return CUDA_ERROR_INVALID_DEVICE;
    if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) return note(memory_advice_map.preferred, resolved(location));
    bool const set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
    return note(memory_advice_map.accessed_by[number_of(location)], set ? any_location : no_location);
  });
}

CUresult cuMemRangeGetAttribute(void* place, size_t size, CUmem_range_attribute attribute, CUdeviceptr pointer,
                                size_t bytes) {
  return enter<"cuMemRangeGetAttribute", quiet>([&](simulation& device) {
    if (!is_managed(device, pointer, bytes) && !is_pageable(device, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return describe_range(device.advice, place, size, attribute, pointer, bytes);
  });
}

CUresult cuMemRangeGetAttributes(void** places, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr pointer, size_t bytes) {
  return enter<"cuMemRangeGetAttributes", quiet>([&](simulation& device) {
    if (places == nullptr || sizes == nullptr || attributes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_managed(device, pointer, bytes) && !is_pageable(device, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i)
      if (CUresult const result = describe_range(device.advice, places[i], sizes[i], attributes[i], pointer, bytes);
          result != CUDA_SUCCESS)
        return result;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
