// Memory by aligned operator new, and the advice that keeps `headroom` bytes of device memory free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cuda.h>
#include <limits>
#include <map>
#include <new>
#include <string>
#include <unistd.h>
#include <utility>
module gpumem:host_resource.impl;
import :host_resource;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :process;
import :source_state;
import :stream;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t any_alignment = std::numeric_limits<std::size_t>::max();

std::align_val_t host_alignment(std::size_t requested) noexcept {
  return std::align_val_t{std::max(requested, alignof(std::max_align_t))};
}

} // namespace

host_state::host_state() noexcept : source_state{"host_resource", any_alignment} {}

host_state& host_state::instance() {
  throw_if_child();
  set_in_use();
  static auto* const state = new host_state;
  return *state;
}

expected<void*, failure> host_state::allocate_memory(stream_key const&, std::size_t bytes,
                                                     std::size_t alignment) noexcept {
  if (auto* const base = ::operator new(bytes, host_alignment(alignment), std::nothrow)) return base;
  return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
}

bool host_state::free_memory(block const& returned) noexcept {
  ::operator delete(returned.base, host_alignment(returned.alignment));
  return true;
}

void host_state::mark_lost(stream_key const& key, CUresult error) noexcept {
  try {
    device{key.identity().timeline().device()}.mark_lost(error);
  } catch (...) { // there is no driver any more, and so no device to mark
  }
}

} // namespace gpumem::detail

namespace gpumem {
namespace {

inline constexpr CUmemLocation on_host{CU_MEM_LOCATION_TYPE_HOST, 0};

bool has_access(device device) {
  int value = 0;
  auto const result =
      driver().device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device.ordinal());
  check(result, "cuDeviceGetAttribute");
  return value != 0;
}

std::size_t page_size() noexcept {
  static auto const size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Advice applies to whole pages. So a block with advice is made of whole pages and shares none with another block.
std::size_t page_of(std::size_t headroom) noexcept { return headroom ? page_size() : alignof(std::max_align_t); }

std::align_val_t alignment_of(std::size_t requested, std::size_t headroom) noexcept {
  return std::align_val_t{std::max(requested, page_of(headroom))};
}

} // namespace

namespace detail {

system_source::system_source(class device device, std::size_t headroom) noexcept
    : source_state{"system_resource", any_alignment}, device_{device}, headroom_{headroom} {}

system_source& system_source::of(class device device, std::size_t headroom) {
  using key = std::pair<int, std::size_t>;
  device.require();
  if (!has_access(device)) {
    auto const text = "gpumem: device " + std::to_string(device.ordinal()) +
                      " cannot access memory of the host's allocator; use managed_resource or pinned_resource";
    throw_cuda_error(CUDA_ERROR_NOT_SUPPORTED, text.c_str());
  }
  static auto* const mutex = new sync::mutex;
  static auto* const states = new std::map<key, system_source>;
  sync::lock const lock{*mutex};
  return states->try_emplace(key{device.ordinal(), headroom}, device, headroom).first->second;
}

expected<void*, failure> system_source::allocate_memory(stream_key const&, std::size_t bytes,
                                                        std::size_t alignment) noexcept {
  auto const page = page_of(headroom_);
  auto const page_bytes = (bytes + page - 1) / page * page;
  auto const aligned = alignment_of(alignment, headroom_);
  if (auto const usable = call_on(device_, [] { return CUDA_SUCCESS; }); usable != CUDA_SUCCESS)
    return unexpected<failure>{refusal_of(usable, bytes)};
  auto* const base = ::operator new(page_bytes, aligned, std::nothrow);
  if (!base) return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  if (headroom_ == 0) return base;
  auto const advised = device_.interpret(advise(base, page_bytes));
  if (advised == CUDA_SUCCESS) return base;
  take_advice_back(base, page_bytes);
  ::operator delete(base, aligned);
  return unexpected<failure>{refusal_of(advised, bytes)};
}

CUresult system_source::advise(void* base, std::size_t bytes) noexcept {
  return call_on(device_, [&] {
    std::size_t free = 0, total = 0;
    if (auto const result = driver().mem_get_info(&free, &total); result != CUDA_SUCCESS) return result;
    auto const room = free > headroom_ ? free - headroom_ : 0;
    auto const first = std::min(bytes, room / page_size() * page_size());
    auto const prefer = [at = reinterpret_cast<CUdeviceptr>(base)](std::size_t begin, std::size_t end,
                                                                   CUmemLocation where) {
      if (begin == end) return CUDA_SUCCESS;
      return driver().mem_advise(at + begin, end - begin, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, where);
    };
    auto const result = prefer(0, first, {CU_MEM_LOCATION_TYPE_DEVICE, device_.ordinal()});
    return result == CUDA_SUCCESS ? prefer(first, bytes, on_host) : result;
  });
}

// Takes the advice for the block back. Otherwise it would still apply to the next block at these addresses.
void system_source::take_advice_back(void* base, std::size_t bytes) noexcept {
  if (device_.lost()) return;
  device_.interpret(call_on(device_, [&] {
    return driver().mem_advise(reinterpret_cast<CUdeviceptr>(base), bytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
                               on_host);
  }));
}

bool system_source::free_memory(block const& returned) noexcept {
  if (headroom_ != 0) take_advice_back(returned.base, returned.allocated);
  ::operator delete(returned.base, alignment_of(returned.alignment, headroom_));
  return true;
}

void system_source::mark_lost(stream_key const&, CUresult error) noexcept { device_.mark_lost(error); }

} // namespace detail

bool system_resource::supported(gpumem::device device) noexcept {
  try {
    return has_access(device);
  } catch (cuda_error const&) { return false; }
}

} // namespace gpumem
