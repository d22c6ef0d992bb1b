// Device memory by cuMemAlloc.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <map>
#include <mutex>
module gpumem:cuda_resource.impl;
import :cuda_resource;
import :cuda;
import :device;
import :driver;
import :error;
import :stream;
import :sync;

namespace gpumem::detail {

cuda_state& cuda_state::of(class device where) {
  static auto* const guard = new sync::mutex;
  static auto* const states = new std::map<int, cuda_state>;
  sync::lock const held{*guard};
  return states->try_emplace(where.ordinal(), where).first->second;
}

expected<void*, failure> cuda_state::try_allocate(stream_key const&, std::size_t bytes, std::size_t) noexcept {
  CUdeviceptr p{};
  try { current_device const scope{device_}; check(driver().mem_alloc(&p, bytes), "x"); } catch (...) { return unexpected<failure>{failure{}}; }
  return reinterpret_cast<void*>(p);
}
void cuda_state::deallocate(stream_key const&, void* pointer, std::size_t, std::size_t) noexcept { driver().mem_free(reinterpret_cast<CUdeviceptr>(pointer)); }

} // namespace gpumem::detail
