// managed_resource: its two driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
module gpumem:managed_resource.impl;
import :managed_resource;
import :cuda;
import :device;
import :device_source;
import :driver;

namespace gpumem::detail {

device_source& managed_source(device where) {
  static constexpr driver_memory kind{"managed_resource",
                                      [](CUdeviceptr* address, std::size_t bytes) {
                                        return driver().mem_alloc_managed(address, bytes, CU_MEM_ATTACH_GLOBAL);
                                      },
                                      [](CUdeviceptr address) { return driver().mem_free(address); }};
  return device_source::of(kind, where);
}

} // namespace gpumem::detail
