// virtual_pages: reserves the addresses, finds pages and holes, and pins pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
module gpumem:virtual_pages.impl;
import :virtual_pages;
import :cuda;
import :device;
import :driver;

namespace gpumem {
namespace {

// The size of a new page is the mapped bytes divided by this. Smaller pages need more driver calls. A larger page is
// more often kept mapped by one small block that lies in it.
inline constexpr std::size_t page_fraction = 128;
// How many times the device's memory is reserved as addresses, since moved pages leave holes. Addresses cost no memory.
// A reservation takes 5 us on an H200, whether for 1 or for 64 times the device's memory. With 2 times, and two thirds
// of the memory live, a recorded trace found no hole for its largest blocks once it had run 30 times.
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

virtual_pages::virtual_pages(class device where, virtual_pages_options options)
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
  detail::relaxed_capture const relaxed; // a thread may be capturing while a pool makes its pages
  for (; times > 0 && status == CUDA_ERROR_OUT_OF_MEMORY; times /= 2) {
    address_space_ = round_up(times * once);
    status = driver().mem_address_reserve(&base_, address_space_, 0, 0, 0);
  }
  check(status, "cuMemAddressReserve");
}

virtual_pages::~virtual_pages() {
  if (is_gone()) return;
  for (auto const& [offset, page] : pages_) {
    if (options_.on_unmapping) options_.on_unmapping(reinterpret_cast<void*>(base_ + offset), page.of->bytes);
  }
  unmap_all(pages_);
  retry_unreleased();
  if (!is_unmapped({0, address_space_}) || is_gone()) return;
  detail::relaxed_capture const relaxed;
  driver().mem_address_free(base_, address_space_);
}

bool virtual_pages::supported(class device where) noexcept {
  try {
    return has(where, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  } catch (cuda_error const&) { return false; }
}

// Returns whether no driver call may be made (the process exits) or every call fails (the device is lost).
bool virtual_pages::is_gone() const noexcept { return !driver_alive() || device_.lost(); }

std::size_t virtual_pages::round_up(std::size_t bytes) const noexcept {
  return (bytes + granularity_ - 1) / granularity_ * granularity_;
}

std::size_t virtual_pages::next_page_size() const noexcept {
  auto const least = std::max(detail::smallest_page, granularity_);
  auto const share = mapped_bytes_ / page_fraction / granularity_ * granularity_;
  return std::clamp(share, least, std::max(detail::largest_page, least));
}

std::size_t virtual_pages::mapped_end() const noexcept {
  std::size_t end = 0;
  if (!pages_.empty()) end = pages_.rbegin()->first + pages_.rbegin()->second.of->bytes;
  for (auto const& [offset, page] : unreleased_) {
    if (page.mapped) end = std::max(end, offset + page.of->bytes);
  }
  return end;
}

bool virtual_pages::is_unmapped(page_extent run) const noexcept {
  auto const above = pages_.lower_bound(run.offset);
  if (above != pages_.end() && above->first < run.end()) return false;
  if (above != pages_.begin()) {
    auto const& [offset, page] = *std::prev(above);
    if (offset + page.of->bytes > run.offset) return false;
  }
  return std::none_of(unreleased_.begin(), unreleased_.end(), [&](auto const& kept) {
    return kept.second.mapped && kept.first < run.end() && kept.first + kept.second.of->bytes > run.offset;
  });
}

std::optional<std::size_t> virtual_pages::find_extent(std::size_t bytes) const noexcept {
  if (bytes == 0 || bytes > address_space_) return std::nullopt;
  auto const need = round_up(bytes);
  std::optional<page_extent> best;
  std::size_t at = 0;
  for (auto const& [offset, page] : pages_) {
    page_extent const hole{at, offset - at};
    bool const better = hole.bytes >= need && (!best || hole.bytes < best->bytes);
    if (better && is_unmapped({at, need})) best = hole;
    at = offset + page.of->bytes;
  }
  if (best) return best->offset;
  auto const end = mapped_end();
  return need <= address_space_ - end ? std::optional{end} : std::nullopt;
}

page_info virtual_pages::info_of(std::size_t offset, mapped_page const& at) noexcept {
  return {{offset, at.of->bytes}, at.of->pins > 0, at.of->mappings > 1};
}

virtual_pages::page_map::const_iterator virtual_pages::find_containing(void const* address) const noexcept {
  auto const offset = reinterpret_cast<std::uintptr_t>(address) - static_cast<std::uintptr_t>(base_);
  auto const above = pages_.upper_bound(offset);
  if (offset >= address_space_ || above == pages_.begin()) return pages_.end();
  auto const found = std::prev(above);
  return offset - found->first < found->second.of->bytes ? found : pages_.end();
}

std::optional<page_info> virtual_pages::page_of(void const* address) const noexcept {
  auto const found = find_containing(address);
  if (found == pages_.end()) return std::nullopt;
  return info_of(found->first, found->second);
}

// Returns the number of pages that hold the range; 0 if a part of the range is not mapped.
std::size_t virtual_pages::pages_in(void const* address, std::size_t bytes) const noexcept {
  auto at = find_containing(address);
  if (bytes == 0 || at == pages_.end()) return 0;
  auto const begin = reinterpret_cast<std::uintptr_t>(address) - static_cast<std::uintptr_t>(base_);
  if (bytes > address_space_ - begin) return 0;
  std::size_t count = 0;
  auto next = at->first;
  for (; at != pages_.end() && at->first == next && next < begin + bytes; ++at, ++count) next += at->second.of->bytes;
  return next >= begin + bytes ? count : 0;
}

bool virtual_pages::pin(void const* address, std::size_t bytes) noexcept {
  auto at = find_containing(address);
  auto const count = pages_in(address, bytes);
  for (std::size_t i = 0; i < count; ++i, ++at) ++at->second.of->pins;
  return count != 0;
}

void virtual_pages::unpin(void const* address, std::size_t bytes) noexcept {
  auto at = find_containing(address);
  auto const count = pages_in(address, bytes);
  for (std::size_t i = 0; i < count; ++i, ++at) {
    if (at->second.of->pins > 0) --at->second.of->pins;
  }
}

} // namespace gpumem
