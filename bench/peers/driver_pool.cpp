// The driver's pool as a peer: calls cuMemAllocFromPoolAsync and cuMemFreeAsync directly.
// SPDX-License-Identifier: Apache-2.0
module;

#include "peer.h"

#include <cstddef>
#include <cstdint>
#include <memory>

module peers;

import gpumem;

namespace peers {

namespace {

struct pool {
  CUmemoryPool handle = nullptr;

  explicit pool(int device) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_pool_create(&handle, &properties),
                              "create the driver's pool");
    std::uint64_t keep = UINT64_MAX;
    gpumem::driver_api::check(
        gpumem::driver_api::driver().mem_pool_set_attribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
        "let the driver's pool keep what it has");
  }
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;
  ~pool() { gpumem::driver_api::driver().mem_pool_destroy(handle); }
};

void* make(int device) {
  try {
    gpumem::device_guard const here{gpumem::device{device}};
    return new pool{device};
  } catch (...) { return nullptr; }
}

void destroy(void* self) { delete static_cast<pool*>(self); }

void* allocate(void* self, std::size_t bytes, CUstream stream) {
  CUdeviceptr got = 0;
  auto const handle = static_cast<pool*>(self)->handle;
  if (gpumem::driver_api::driver().mem_alloc_from_pool_async(&got, bytes, handle, stream) != CUDA_SUCCESS)
    return nullptr;
  return reinterpret_cast<void*>(got);
}

void deallocate(void*, void* pointer, std::size_t, CUstream stream) {
  gpumem::driver_api::driver().mem_free_async(reinterpret_cast<CUdeviceptr>(pointer), stream);
}

std::size_t peak_reserved(void* self) {
  std::uint64_t bytes = 0;
  gpumem::driver_api::driver().mem_pool_get_attribute(static_cast<pool*>(self)->handle,
                                                      CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &bytes);
  return bytes;
}

constexpr gpumem_peer table{"driver_pool", make, destroy, allocate, deallocate, peak_reserved};

} // namespace

gpumem_peer const& driver_pool() noexcept { return table; }

} // namespace peers
