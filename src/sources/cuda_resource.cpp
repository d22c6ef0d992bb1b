// cuda_resource: its two driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
module gpumem:cuda_resource.impl;
import :cuda_resource;
import :cuda;
import :device;
import :device_source;
import :driver;

namespace gpumem::detail {

device_source& cuda_source(device where) {
  static constexpr driver_memory kind{
      "cuda_resource", [](CUdeviceptr* address, std::size_t bytes) { return driver().mem_alloc(address, bytes); },
      [](CUdeviceptr address) { return driver().mem_free(address); }};
  return device_source::of(kind, where);
}

} // namespace gpumem::detail
