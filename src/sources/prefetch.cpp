// prefetch: enqueues cuMemPrefetchAsync on a stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
module gpumem:prefetch.impl;
import :prefetch;
import :cuda;
import :device;
import :driver;
import :source_state;
import :stream;

namespace gpumem {

CUresult detail::enqueue_prefetch(stream_key const& key, void const* pointer, std::size_t bytes,
                                  memory_location location) noexcept {
  if (key.identity().capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto const on = usable_handle(key);
  if (!on) return CUDA_ERROR_INVALID_HANDLE;
  auto const place = location.is_host() ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0}
                                        : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, location.ordinal()};
  auto const result = call_on_stream(key, *on, [&] {
    return driver().mem_prefetch_async(reinterpret_cast<CUdeviceptr>(pointer), bytes, place, 0, *on);
  });
  return interpret(key.identity().timeline().device(), result);
}

bool prefetch(void const* pointer, std::size_t bytes, memory_location location, stream_ref stream) {
  detail::throw_if_child();
  if (bytes == 0 || !driver_alive()) return false;
  switch (auto const result = detail::enqueue_prefetch(identify(stream), pointer, bytes, location)) {
  case CUDA_SUCCESS: return true;
  case CUDA_ERROR_INVALID_VALUE:
  case CUDA_ERROR_INVALID_DEVICE:
  case CUDA_ERROR_NOT_SUPPORTED: return false;
  default: throw_cuda_error(result, "gpumem: cuMemPrefetchAsync");
  }
}

} // namespace gpumem
