// Entry points of copies, fills, prefetch and advice.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "entry.hpp"
#include "transfers.hpp"

using namespace simulated;

namespace {

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

template <entry_name Name> CUresult copy_now(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  return enter_on<Name, (needs_context | unsafe_in_capture)>(
      CU_STREAM_LEGACY,
      [&](simulation& device, const stream_ptr& on) __attribute__((requires_capability(simulation_mutex))) {
        return transfer(device, on, to, from, bytes, true, Name.text);
      });
}

template <entry_name Name>
CUresult copy_later(CUstream handle, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  return enter_on<Name>(handle, [&](simulation& device, const stream_ptr& on)
                                    __attribute__((requires_capability(simulation_mutex))) {
                                      return transfer(device, on, to, from, bytes, false, Name.text);
                                    });
}

template <entry_name Name, unsigned Rules = plain>
CUresult fill_on(CUstream handle, CUdeviceptr to, std::uint32_t value, unsigned width, std::size_t count) {
  return enter_on<Name, Rules>(
      handle, [&](simulation& device, const stream_ptr& on) { return fill(device, on, to, value, width, count); });
}

/// Returns whether one managed allocation, or block of a pool, holds all of the bytes.
bool is_managed(const simulation& device, CUdeviceptr pointer, size_t bytes) {
  const auto held = known_at(device, pointer);
  return held && held->kind == memory_kind::managed && bytes != 0 && bytes <= held->bytes - (pointer - held->address);
}

/// Returns whether the devices can access the bytes as memory of the host that the driver does not know.
bool is_pageable(const simulation& device, CUdeviceptr pointer, size_t bytes) {
  if (device.options().pageable_memory == 0 || pointer == 0 || bytes == 0) return false;
  return !device.allocations.owns(pointer) && !device.mappings.owns(pointer) && !known_at(device, pointer);
}

/// Calls `set(address, bytes)` with the pages of the host that hold the bytes: advice is for whole pages.
template <class Set> void for_pages(CUdeviceptr pointer, size_t bytes, Set&& set) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = pointer / page * page;
  set(begin, (pointer + bytes + page - 1) / page * page - begin);
}

int number_of(const CUmemLocation& place) {
  return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : int{CU_DEVICE_CPU};
}

/// Returns success, or the driver's error for a location to which memory cannot be moved.
CUresult judge(const simulation& device, const CUmemLocation& to) {
  switch (to.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return to.id >= 0 && to.id < device.options().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA: return to.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
}

} // namespace

extern "C" {

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_now<"cuMemcpy">(to, from, bytes); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_now<"cuMemcpyHtoD">(to, address(from), bytes);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return copy_now<"cuMemcpyDtoH">(address(to), from, bytes);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now<"cuMemcpyDtoD">(to, from, bytes);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return copy_now<"cuMemcpyPeer">(to, from, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyAsync">(stream, to, from, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyHtoDAsync">(stream, to, address(from), bytes);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyDtoHAsync">(stream, address(to), from, bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyDtoDAsync">(stream, to, from, bytes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyPeerAsync">(stream, to, from, bytes);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_on < "cuMemsetD8", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, to, value, 1, count);
}
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_on < "cuMemsetD16", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, to, value, 2, count);
}
CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  return fill_on < "cuMemsetD32", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, to, value, 4, count);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD8Async">(stream, to, value, 1, count);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD16Async">(stream, to, value, 2, count);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD32Async">(stream, to, value, 4, count);
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream) {
  return enter_on<"cuMemPrefetchAsync">(stream, [&](simulation& device, const stream_ptr& on) {
    if (flags != 0 || !is_managed(device, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult judged = judge(device, to); judged != CUDA_SUCCESS) return judged;
    if (device.options().concurrent_managed_access == 0) return CUDA_ERROR_INVALID_DEVICE;
    if (on->capturing) { // a graph cannot hold a prefetch
      device.invalidate(*on->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    device.prefetched.set(pointer, bytes, number_of(to));
    operation work;
    work.action = "prefetch";
    return device.enqueue(on, std::move(work));
  });
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation to) {
  return enter<"cuMemAdvise">([&](simulation& device) {
    const bool known = is_managed(device, pointer, bytes) || is_pageable(device, pointer, bytes);
    if (!known || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
      return CUDA_ERROR_INVALID_VALUE;
    const auto prefer = [&](int where) {
      for_pages(pointer, bytes, [&](auto begin, auto length) { device.preferred.set(begin, length, where); });
    };
    if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) prefer(CU_DEVICE_INVALID);
    if (advice <= CU_MEM_ADVISE_UNSET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
      return CUDA_SUCCESS; // these ignore the location
    if (const CUresult judged = judge(device, to); judged != CUDA_SUCCESS) return judged;
    if (to.type == CU_MEM_LOCATION_TYPE_DEVICE && device.options().concurrent_managed_access == 0)
      return CUDA_ERROR_INVALID_DEVICE;
    if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) prefer(number_of(to));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRangeGetAttribute(void* place, size_t size, CUmem_range_attribute which, CUdeviceptr pointer,
                                size_t bytes) {
  return enter<"cuMemRangeGetAttribute", quiet>([&](simulation& device) {
    const bool known = is_managed(device, pointer, bytes) || is_pageable(device, pointer, bytes);
    if (place == nullptr || size != sizeof(int) || !known) return CUDA_ERROR_INVALID_VALUE;
    const bool last = which == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    if (!last && which != CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) return CUDA_ERROR_NOT_SUPPORTED;
    *static_cast<int*>(place) = (last ? device.prefetched : device.preferred).of(pointer, bytes);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
