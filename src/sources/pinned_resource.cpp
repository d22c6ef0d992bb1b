// pinned_resource: its two driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
module gpumem:pinned_resource.impl;
import :pinned_resource;
import :cuda;
import :device;
import :device_source;
import :driver;

namespace gpumem::detail {

device_source& pinned_source(device where) {
  static constexpr driver_memory kind{
      "pinned_resource",
      [](CUdeviceptr* address, std::size_t bytes) {
        void* pointer = nullptr;
        auto const result =
            driver().mem_host_alloc(&pointer, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        *address = reinterpret_cast<CUdeviceptr>(pointer);
        return result;
      },
      [](CUdeviceptr address) { return driver().mem_free_host(reinterpret_cast<void*>(address)); }};
  return device_source::of(kind, where);
}

} // namespace gpumem::detail
