// Gets and returns each block by a driver call: device, managed and pinned memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <cstddef>
#include <cuda.h>
#include <map>
#include <utility>
module gpumem:cuda_resource.impl;
import :cuda_resource;
import :cuda;
import :device;
import :driver;
import :error;
import :source_state;
import :stream;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t driver_alignment = 256;

struct source_states {
  using key = std::pair<driver_memory const*, int>;
  sync::mutex mutex;
  std::map<key, device_source> all GPUMEM_GUARDED_BY(mutex);

  static source_states& instance() {
    static auto* const made = new source_states;
    return *made;
  }
};

} // namespace

device_source::device_source(driver_memory const& kind, class device device) noexcept
    : source_state{kind.name, driver_alignment}, kind_{kind}, device_{device} {}

device_source& device_source::of(driver_memory const& kind, class device device) {
  throw_if_child();
  auto& states = source_states::instance();
  sync::lock const lock{states.mutex};
  return states.all.try_emplace({&kind, device.ordinal()}, kind, device).first->second;
}

expected<void*, failure> device_source::allocate_memory(stream_key const&, std::size_t bytes, std::size_t) noexcept {
  CUdeviceptr address{};
  auto const result = call_on(device_, [&] { return kind_.allocate(&address, bytes); });
  if (result == CUDA_SUCCESS) return reinterpret_cast<void*>(address);
  return unexpected<failure>{refusal_of(device_.interpret(result), bytes)};
}

bool device_source::free_memory(block const& returned) noexcept {
  if (device_.lost()) return true;
  auto const result = call_on(device_, [&] { return kind_.free(reinterpret_cast<CUdeviceptr>(returned.base)); });
  return !capture_forbids(device_.interpret(result));
}

void device_source::mark_lost(stream_key const&, CUresult error) noexcept { device_.mark_lost(error); }

device_source& cuda_source(device device) {
  static constexpr driver_memory kind{
      "cuda_resource", [](CUdeviceptr* address, std::size_t bytes) { return driver().mem_alloc(address, bytes); },
      [](CUdeviceptr address) { return driver().mem_free(address); }};
  return device_source::of(kind, device);
}

device_source& managed_source(device device) {
  static constexpr driver_memory kind{"managed_resource",
                                      [](CUdeviceptr* address, std::size_t bytes) {
                                        return driver().mem_alloc_managed(address, bytes, CU_MEM_ATTACH_GLOBAL);
                                      },
                                      [](CUdeviceptr address) { return driver().mem_free(address); }};
  return device_source::of(kind, device);
}

device_source& pinned_source(device device) {
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
  return device_source::of(kind, device);
}

} // namespace gpumem::detail
