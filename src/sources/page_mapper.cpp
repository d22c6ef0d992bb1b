// Reserves addresses, and makes the driver calls that map pages there and unmap them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/error.hpp>
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
module gpumem:page_mapper.impl;
import :page_mapper;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :page_store;
import :page_table;
import :source_state;
import :virtual_pages_options;

namespace gpumem::detail {

page_mapper::page_mapper(std::shared_ptr<page_store> pages, std::size_t most, std::size_t least)
    : store_{std::move(pages)} {
  if (most > std::numeric_limits<std::size_t>::max() - store_->granularity())
    throw std::invalid_argument{"gpumem: the requested address space is too large"};
  store_->where().require();
  device_guard const scope{store_->where()};
  relaxed_capture const relaxed; // a thread may capture a graph while a pool is made
  auto status = CUDA_ERROR_OUT_OF_MEMORY;
  for (address_space_ = store_->round_up(most);;
       address_space_ = store_->round_up(std::max(address_space_ / 2, least))) {
    status = driver().mem_address_reserve(&base_, address_space_, 0, 0, 0);
    if (status != CUDA_ERROR_OUT_OF_MEMORY || address_space_ <= store_->round_up(least)) break;
  }
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    auto const text = "gpumem: the process has no " + size_text(address_space_) +
                      " of addresses left; lower the option address_space, or raise `ulimit -v`";
    throw_cuda_error(status, text.c_str());
  }
  check(status, "cuMemAddressReserve");
}

std::optional<failure> page_mapper::map(page_map& made, page_extent run, std::size_t requested) noexcept {
  auto result = CUDA_SUCCESS;
  bool complete = false;
  auto const entered = store_->on_device([&] {
    result = map_all(made, run);
    complete = result == CUDA_SUCCESS && notify_mapped(run);
    if (!complete) unmap(made);
    return CUDA_SUCCESS;
  });
  if (complete) return std::nullopt;
  if (entered != CUDA_SUCCESS) result = entered;
  result = store_->where().interpret(result);
  // If the driver reported no error, the user's function on_mapped has refused the pages.
  if (result == CUDA_SUCCESS) return failure{outcome::driver_error, CUDA_SUCCESS, requested};
  return refusal_of(result, requested);
}

CUresult page_mapper::map_all(page_map& made, page_extent run) noexcept {
  for (auto& [offset, page] : made) {
    if (auto const result = attach(offset, page); result != CUDA_SUCCESS) return result;
  }
  auto const rights = store_->rights();
  return driver().mem_set_access(base_ + run.offset, run.bytes, rights.data(), rights.size());
}

CUresult page_mapper::attach(std::size_t offset, mapped_page& at) noexcept {
  auto& of = *at.of;
  if (!of.held) {
    if (auto const result = store_->create(of); result != CUDA_SUCCESS) return result;
  }
  auto const result = driver().mem_map(base_ + offset, of.bytes, 0, of.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  at.mapped = true;
  ++of.mappings;
  return CUDA_SUCCESS;
}

bool page_mapper::notify_mapped(page_extent run) const noexcept {
  auto const& told = store_->options().on_mapped;
  try {
    return !told || told(reinterpret_cast<void*>(base_ + run.offset), run.bytes);
  } catch (...) { return false; } // any exception refuses the mapping
}

void page_mapper::announce_unmapping(page_extent run) const noexcept {
  auto const& told = store_->options().on_unmapping;
  if (told && !store_->is_gone()) told(reinterpret_cast<void*>(base_ + run.offset), run.bytes);
}

bool page_mapper::unmap_page(std::size_t offset, mapped_page& at) const noexcept {
  if (!at.mapped) return true;
  bool const refused =
      !store_->is_gone() && store_->where().interpret(driver().mem_unmap(base_ + offset, at.of->bytes)) != CUDA_SUCCESS;
  if (refused) return false;
  at.mapped = false;
  --at.of->mappings;
  return true;
}

template <class Pages> void page_mapper::unmap_each(Pages& pages) noexcept {
  store_->on_device([&] {
    for (auto at = pages.begin(); at != pages.end();) {
      bool const unmapped = unmap_page(at->first, at->second);
      auto& of = *at->second.of;
      bool const gone = unmapped && (of.mappings > 0 || store_->release(of));
      at = gone ? pages.erase(at) : std::next(at);
    }
    return CUDA_SUCCESS;
  });
}

void page_mapper::unmap(page_map& leaving) noexcept { unmap_each(leaving); }

void page_mapper::retry(unreleased_map& refused) noexcept {
  if (!refused.empty()) unmap_each(refused);
}

void page_mapper::release_addresses() noexcept {
  if (store_->is_gone()) return;
  relaxed_capture const relaxed;
  driver().mem_address_free(base_, address_space_);
}

CUresult page_mapper::open_to(device peer, page_map const& pages) noexcept {
  auto const right = page_store::right_of(peer);
  auto result = CUDA_SUCCESS;
  auto const entered = store_->on_device([&] {
    for (auto const& [offset, page] : pages) {
      if (result == CUDA_SUCCESS) result = driver().mem_set_access(base_ + offset, page.of->bytes, &right, 1);
    }
    return result;
  });
  if (entered != CUDA_SUCCESS) result = entered;
  return store_->where().interpret(result);
}

} // namespace gpumem::detail
