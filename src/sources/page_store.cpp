// Creates and destroys pages, knows which devices may use them, and finds mapped pages and holes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cuda.h>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
module gpumem:page_store.impl;
import :page_store;
import :cuda;
import :device;
import :driver;
import :error;
import :source_state;

namespace gpumem::detail {

page_map plan_pages(page_extent run, std::size_t page) {
  page_map pages;
  for (auto at = run.offset; at < run.end();) {
    auto const bytes = std::min(page, run.end() - at);
    auto of = std::make_shared<physical_page>();
    of->bytes = bytes;
    pages.emplace_hint(pages.end(), at, mapped_page{std::move(of)});
    at += bytes;
  }
  return pages;
}

page_info info_of(page_map::value_type const& page) noexcept {
  auto const& of = *page.second.of;
  return {{page.first, of.bytes}, of.pins > 0, of.mappings > 1};
}

bool any_pinned(page_span const& pages) noexcept {
  return std::ranges::any_of(pages, [](auto const& each) { return each.second.of->pins > 0; });
}

page_map::const_iterator page_table::find_containing(std::size_t offset) const noexcept {
  auto const above = pages_.upper_bound(offset);
  if (above == pages_.begin()) return pages_.end();
  auto const found = std::prev(above);
  return offset - found->first < found->second.of->bytes ? found : pages_.end();
}

page_span page_table::pages_holding(page_extent run) const noexcept {
  auto const first = find_containing(run.offset);
  if (first == pages_.end() || run.bytes == 0 || run.bytes > mapped_end() - run.offset) return {};
  auto last = first;
  auto next = first->first;
  for (; last != pages_.end() && last->first == next && next < run.end(); ++last) next += last->second.of->bytes;
  return next >= run.end() ? page_span{first, last} : page_span{};
}

page_span page_table::pages_of(page_extent run) const noexcept {
  auto const first = pages_.find(run.offset);
  auto last = first;
  auto next = run.offset;
  for (; last != pages_.end() && last->first == next && next < run.end(); ++last) next += last->second.of->bytes;
  return next == run.end() ? page_span{first, last} : page_span{};
}

bool page_table::is_unmapped(page_extent run) const noexcept {
  auto const above = pages_.lower_bound(run.offset);
  if (above != pages_.end() && above->first < run.end()) return false;
  if (above != pages_.begin()) {
    auto const& [offset, page] = *std::prev(above);
    if (offset + page.of->bytes > run.offset) return false;
  }
  return std::none_of(refused_pages_.begin(), refused_pages_.end(), [&](auto const& kept) {
    return kept.second.mapped && kept.first < run.end() && kept.first + kept.second.of->bytes > run.offset;
  });
}

std::size_t page_table::mapped_end() const noexcept {
  std::size_t end = 0;
  if (!pages_.empty()) end = pages_.rbegin()->first + pages_.rbegin()->second.of->bytes;
  for (auto const& [offset, page] : refused_pages_) {
    if (page.mapped) end = std::max(end, offset + page.of->bytes);
  }
  return end;
}

std::optional<std::size_t> page_table::find_extent(std::size_t bytes, std::size_t space) const noexcept {
  std::optional<page_extent> best;
  std::size_t at = 0;
  for (auto const& [offset, page] : pages_) {
    page_extent const hole{at, offset - at};
    bool const better = hole.bytes >= bytes && (!best || hole.bytes < best->bytes);
    if (better && is_unmapped({at, bytes})) best = hole;
    at = offset + page.of->bytes;
  }
  if (best) return best->offset;
  auto const end = mapped_end();
  return bytes <= space - end ? std::optional{end} : std::nullopt;
}

void page_table::add(page_map& pages) noexcept { pages_.merge(pages); }

page_map page_table::take(page_span const& pages) noexcept {
  page_map taken;
  for (auto at = pages.begin(); at != pages.end();) taken.insert(pages_.extract(at++));
  return taken;
}

void page_table::keep_refused(page_map& refused) noexcept {
  while (!refused.empty()) refused_pages_.insert(refused.extract(refused.begin()));
}

namespace {

// Addresses cost no memory. A reservation takes 5 us on an H200, whether for 1 or for 64 times the device's memory.
// With 2 times, and two thirds of the memory live, holes became too small for the largest blocks of a recorded trace
// after 30 runs of it.
inline constexpr std::size_t max_times = 8;

bool has(device device, CUdevice_attribute attribute) {
  int value = 0;
  check(driver().device_get_attribute(&value, attribute, device.ordinal()), "cuDeviceGetAttribute");
  return value != 0;
}

[[noreturn]] void refuse(device device, char const* feature) {
  auto const text = "gpumem: device " + std::to_string(device.ordinal()) + " has no " + feature;
  throw_cuda_error(CUDA_ERROR_NOT_SUPPORTED, text.c_str());
}

CUmemAllocationProp properties_of(device device, virtual_pages_options const& options) {
  if (!has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    refuse(device, "virtual memory; give the pool an upstream, as in pool_resource{cuda_resource{device}}");
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()};
  if (options.exportable) {
    if (!has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      refuse(device, "virtual memory that other processes can map");
    }
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if (options.rdma) {
    if (!has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
      refuse(device, "virtual memory that network devices can access");
    }
    properties.allocFlags.gpuDirectRDMACapable = 1;
  }
  return properties;
}

std::vector<CUmemAccessDesc> rights_of(device home, std::vector<device> const& peers) {
  std::vector<CUmemAccessDesc> rights{page_store::right_of(home)};
  for (auto const peer : peers) {
    if (peer == home) continue;
    int can = 0;
    check(driver().device_can_access_peer(&can, peer.ordinal(), home.ordinal()), "cuDeviceCanAccessPeer");
    if (can == 0) {
      throw std::invalid_argument{"gpumem: device " + std::to_string(peer.ordinal()) +
                                  " cannot access the memory of device " + std::to_string(home.ordinal())};
    }
    rights.push_back(page_store::right_of(peer));
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

page_store::page_store(device device, virtual_pages_options options)
    : device_{device}, options_{std::move(options)}, properties_{properties_of(device, options_)},
      rights_{rights_of(device, options_.peers)}, granularity_{granularity_of(properties_)} {
  device.require();
}

std::size_t page_store::most_addresses() {
  if (most_addresses_ == 0) most_addresses_ = max_times * device_.memory().total;
  return most_addresses_;
}

CUresult page_store::create(physical_page& page) noexcept {
  auto const result = driver().mem_create(&page.handle, page.bytes, &properties_, 0);
  full_ = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return result;
  page.held = true;
  held_bytes_ += page.bytes;
  return result;
}

bool page_store::destroy(physical_page& page) noexcept {
  if (!page.held) return true;
  if (!is_gone() && device_.interpret(driver().mem_release(page.handle)) != CUDA_SUCCESS) return false;
  page.held = false;
  held_bytes_ -= page.bytes;
  return true;
}

bool page_store::has_memory(physical_page& page) noexcept {
  auto result = CUDA_SUCCESS;
  on_device([&] {
    result = create(page);
    destroy(page);
    return CUDA_SUCCESS;
  });
  return result != CUDA_ERROR_OUT_OF_MEMORY;
}

bool page_store::is_open_to(device peer) const noexcept {
  return std::ranges::any_of(rights_, [&](auto const& one) { return one.location.id == peer.ordinal(); });
}

CUresult page_store::open_to(device peer) noexcept try {
  if (!is_open_to(peer)) rights_.push_back(right_of(peer));
  return CUDA_SUCCESS;
} catch (std::bad_alloc const&) { return CUDA_ERROR_OUT_OF_MEMORY; }

expected<int, failure> page_store::export_page(physical_page const& page) const noexcept {
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
