// Reserves the addresses of virtual pages, and makes the driver calls that map and unmap them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
module gpumem:page_mapper.impl;
import :page_mapper;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :page_table;
import :source_state;
import :virtual_pages_options;

namespace gpumem::detail {
namespace {

// The reserved addresses are at most this many times the device's memory, since moved pages leave unmapped ranges
// (holes). Addresses cost no memory. A reservation takes 5 us on an H200, whether for 1 or for 64 times the device's
// memory. With 2 times, and two thirds of the memory live, holes became too small for the largest blocks of a recorded
// trace after 30 runs of it.
inline constexpr std::size_t max_times = 8;

bool has(device where, CUdevice_attribute what) {
  int value = 0;
  check(driver().device_get_attribute(&value, what, where.ordinal()), "cuDeviceGetAttribute");
  return value != 0;
}

[[noreturn]] void refuse(device where, char const* what) {
  auto const text = "gpumem: device " + std::to_string(where.ordinal()) + " has no " + what;
  throw_cuda_error(CUDA_ERROR_NOT_SUPPORTED, text.c_str());
}

CUmemAllocationProp properties_of(device where, virtual_pages_options const& options) {
  if (!has(where, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    refuse(where, "virtual memory; give the pool an upstream, as in pool_resource{cuda_resource{device}}");
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, where.ordinal()};
  if (options.exportable) {
    if (!has(where, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      refuse(where, "virtual memory that other processes can map");
    }
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if (options.rdma) {
    if (!has(where, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
      refuse(where, "virtual memory that network devices can access");
    }
    properties.allocFlags.gpuDirectRDMACapable = 1;
  }
  return properties;
}

std::vector<CUmemAccessDesc> rights_of(device where, std::vector<device> const& peers) {
  auto const right = [](device peer) {
    return CUmemAccessDesc{{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  };
  std::vector<CUmemAccessDesc> rights{right(where)};
  for (auto const peer : peers) {
    if (peer == where) continue;
    int can = 0;
    check(driver().device_can_access_peer(&can, peer.ordinal(), where.ordinal()), "cuDeviceCanAccessPeer");
    if (can == 0) {
      throw std::invalid_argument{"gpumem: device " + std::to_string(peer.ordinal()) +
                                  " cannot access the memory of device " + std::to_string(where.ordinal())};
    }
    rights.push_back(right(peer));
  }
  return rights;
}

std::size_t granularity_of(CUmemAllocationProp const& properties) {
  std::size_t bytes = 0;
  check(driver().mem_get_allocation_granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  return bytes;
}

} // namespace

page_mapper::page_mapper(device where, virtual_pages_options options)
    : device_{where}, options_{std::move(options)}, properties_{properties_of(where, options_)},
      rights_{rights_of(where, options_.peers)}, granularity_{granularity_of(properties_)} {
  where.require();
  device_guard const scope{where};
  auto const once = options_.address_space != 0 ? options_.address_space : where.memory().total;
  if (once > std::numeric_limits<std::size_t>::max() - granularity_) {
    throw std::invalid_argument{"gpumem: the requested address space is too large"};
  }
  auto status = CUDA_ERROR_OUT_OF_MEMORY;
  auto times = options_.address_space != 0 ? 1 : max_times;
  relaxed_capture const relaxed; // a thread may capture a graph while a pool is made
  for (; times > 0 && status == CUDA_ERROR_OUT_OF_MEMORY; times /= 2) {
    address_space_ = round_up(times * once);
    status = driver().mem_address_reserve(&base_, address_space_, 0, 0, 0);
  }
  check(status, "cuMemAddressReserve");
}

// Returns whether driver calls are useless: while the process exits they are forbidden, and on a lost device every call
// fails.
bool page_mapper::is_gone() const noexcept { return !driver_alive() || device_.lost(); }

std::size_t page_mapper::round_up(std::size_t bytes) const noexcept {
  return (bytes + granularity_ - 1) / granularity_ * granularity_;
}

template <class Call> CUresult page_mapper::on_device(Call call) noexcept {
  if (is_gone()) return call();
  return call_on(device_, call);
}

std::optional<failure> page_mapper::map(page_map& made, page_extent run, std::size_t requested) noexcept {
  auto result = CUDA_SUCCESS;
  bool complete = false;
  auto const entered = on_device([&] {
    result = map_all(made, run);
    complete = result == CUDA_SUCCESS && notify_mapped(run);
    if (!complete) unmap(made);
    return CUDA_SUCCESS;
  });
  if (complete) return std::nullopt;
  if (entered != CUDA_SUCCESS) result = entered;
  result = device_.interpret(result);
  // If the driver reported no error, the user's function on_mapped has refused the pages.
  if (result == CUDA_SUCCESS) return failure{outcome::driver_error, CUDA_SUCCESS, requested};
  return refusal_of(result, requested);
}

bool page_mapper::has_memory(page_map& page) noexcept {
  auto result = CUDA_SUCCESS;
  on_device([&] {
    result = create(*page.begin()->second.of);
    return CUDA_SUCCESS;
  });
  unmap(page);
  return result != CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult page_mapper::map_all(page_map& made, page_extent run) noexcept {
  for (auto& [offset, page] : made) {
    if (auto const result = attach(offset, page); result != CUDA_SUCCESS) return result;
  }
  return driver().mem_set_access(base_ + run.offset, run.bytes, rights_.data(), rights_.size());
}

CUresult page_mapper::create(physical_page& page) noexcept {
  auto const result = driver().mem_create(&page.handle, page.bytes, &properties_, 0);
  full_ = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return result;
  page.held = true;
  held_bytes_ += page.bytes;
  return result;
}

CUresult page_mapper::attach(std::size_t offset, mapped_page& at) noexcept {
  auto& of = *at.of;
  if (!of.held) {
    if (auto const result = create(of); result != CUDA_SUCCESS) return result;
  }
  auto const result = driver().mem_map(base_ + offset, of.bytes, 0, of.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  at.mapped = true;
  ++of.mappings;
  return CUDA_SUCCESS;
}

bool page_mapper::notify_mapped(page_extent run) const noexcept {
  try {
    return !options_.on_mapped || options_.on_mapped(reinterpret_cast<void*>(base_ + run.offset), run.bytes);
  } catch (...) { return false; } // any exception refuses the mapping
}

void page_mapper::announce_unmapping(page_extent run) const noexcept {
  if (options_.on_unmapping && !is_gone())
    options_.on_unmapping(reinterpret_cast<void*>(base_ + run.offset), run.bytes);
}

template <class Pages> void page_mapper::unmap_each(Pages& pages) noexcept {
  on_device([&] {
    for (auto at = pages.begin(); at != pages.end();) at = unmap_page(at->first, at->second) ? pages.erase(at) : ++at;
    return CUDA_SUCCESS;
  });
}

void page_mapper::unmap(page_map& leaving) noexcept { unmap_each(leaving); }

void page_mapper::retry(unreleased_map& refused) noexcept {
  if (!refused.empty()) unmap_each(refused);
}

// Unmaps one page, and releases its memory if it is mapped nowhere else. Returns false if the driver refuses.
bool page_mapper::unmap_page(std::size_t offset, mapped_page& at) noexcept {
  auto& of = *at.of;
  auto const done = [this](CUresult result) { return device_.interpret(result) == CUDA_SUCCESS; };
  if (at.mapped) {
    if (!is_gone() && !done(driver().mem_unmap(base_ + offset, of.bytes))) return false;
    at.mapped = false;
    --of.mappings;
  }
  if (of.mappings > 0 || !of.held) return true;
  if (!is_gone() && !done(driver().mem_release(of.handle))) return false;
  of.held = false;
  held_bytes_ -= of.bytes;
  return true;
}

void page_mapper::release_addresses() noexcept {
  if (is_gone()) return;
  relaxed_capture const relaxed;
  driver().mem_address_free(base_, address_space_);
}

CUresult page_mapper::open_to(device peer, page_map const& pages) noexcept try {
  CUmemAccessDesc const right{{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  auto const of_peer = [&](CUmemAccessDesc const& one) { return one.location.id == peer.ordinal(); };
  if (std::ranges::any_of(rights_, of_peer)) return CUDA_SUCCESS;
  rights_.reserve(rights_.size() + 1);
  auto result = CUDA_SUCCESS;
  auto const entered = on_device([&] {
    for (auto const& [offset, page] : pages) {
      if (result == CUDA_SUCCESS) result = driver().mem_set_access(base_ + offset, page.of->bytes, &right, 1);
    }
    return result;
  });
  if (entered != CUDA_SUCCESS) result = entered;
  if (result == CUDA_SUCCESS) rights_.push_back(right);
  return device_.interpret(result);
} catch (std::bad_alloc const&) { return CUDA_ERROR_OUT_OF_MEMORY; }

expected<int, failure> page_mapper::export_page(physical_page const& page) noexcept {
  if (!options_.exportable) return unexpected<failure>{failure{outcome::invalid_argument, CUDA_SUCCESS, 0}};
  if (is_gone()) return unexpected<failure>{failure{outcome::device_lost, device_.lost_error(), page.bytes}};
  int file = -1;
  auto const result = device_.interpret(on_device([&] {
    return driver().mem_export_to_shareable_handle(&file, page.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }));
  if (result != CUDA_SUCCESS) return unexpected<failure>{refusal_of(result, page.bytes)};
  return file;
}

} // namespace gpumem::detail
