// Reserves addresses; maps, unmaps, moves and exports pages. An alias maps a page at a second address; a pin forbids to
// unmap, move or alias a page. A call that fails midway is undone.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
module gpumem:virtual_pages.impl;
import :virtual_pages;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :page_store;
import :source_state;

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

std::optional<failure> page_mapper::map(page_map& pages, page_extent run, std::size_t requested) noexcept {
  auto result = CUDA_SUCCESS;
  bool complete = false;
  auto const entered = store_->on_device([&] {
    result = map_all(pages, run);
    complete = result == CUDA_SUCCESS && notify_mapped(run);
    if (!complete) unmap(pages);
    return CUDA_SUCCESS;
  });
  if (complete) return std::nullopt;
  if (entered != CUDA_SUCCESS) result = entered;
  result = store_->where().interpret(result);
  // If the driver reported no error, the user's function on_mapped has refused the pages.
  if (result == CUDA_SUCCESS) return failure{outcome::driver_error, CUDA_SUCCESS, requested};
  return refusal_of(result, requested);
}

CUresult page_mapper::map_all(page_map& pages, page_extent run) noexcept {
  for (auto& [offset, page] : pages) {
    if (auto const result = attach(offset, page); result != CUDA_SUCCESS) return result;
  }
  auto const rights = store_->rights();
  return driver().mem_set_access(base_ + run.offset, run.bytes, rights.data(), rights.size());
}

CUresult page_mapper::attach(std::size_t offset, mapped_page& page) noexcept {
  auto& of = *page.of;
  if (!of.held) {
    if (auto const result = store_->create(of); result != CUDA_SUCCESS) return result;
  }
  auto const result = driver().mem_map(base_ + offset, of.bytes, 0, of.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  page.mapped = true;
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

bool page_mapper::unmap_page(std::size_t offset, mapped_page& page) const noexcept {
  if (!page.mapped) return true;
  bool const refused = !store_->is_gone() &&
                       store_->where().interpret(driver().mem_unmap(base_ + offset, page.of->bytes)) != CUDA_SUCCESS;
  if (refused) return false;
  page.mapped = false;
  --page.of->mappings;
  return true;
}

template <class Pages> void page_mapper::unmap_each(Pages& pages) noexcept {
  store_->on_device([&] {
    for (auto at = pages.begin(); at != pages.end();) {
      bool const unmapped = unmap_page(at->first, at->second);
      auto& of = *at->second.of;
      bool const gone = unmapped && (of.mappings > 0 || store_->destroy(of));
      at = gone ? pages.erase(at) : std::next(at);
    }
    return CUDA_SUCCESS;
  });
}

void page_mapper::unmap(page_map& pages) noexcept { unmap_each(pages); }

void page_mapper::retry(refused_page_map& refused) noexcept {
  if (!refused.empty()) unmap_each(refused);
}

void page_mapper::free_addresses() noexcept {
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

namespace gpumem {
namespace {

// A new page has 1/page_fraction of the mapped bytes. Small pages cost more driver calls; a large page stays mapped as
// long as one small block lies on it.
inline constexpr std::size_t page_fraction = 128;
unexpected<failure> refused(outcome reason, std::size_t bytes, CUresult code = CUDA_SUCCESS) noexcept {
  return unexpected<failure>{failure{reason, code, bytes}};
}

} // namespace

virtual_pages::virtual_pages(class device device, virtual_pages_options options)
    : virtual_pages{options.address_space, std::make_shared<detail::page_store>(device, options)} {}

virtual_pages::virtual_pages(std::size_t space, std::shared_ptr<detail::page_store> pages)
    : virtual_pages{pages, space ? space : pages->most_addresses(), space ? space : pages->most_addresses() / 8} {}

virtual_pages::virtual_pages(std::shared_ptr<detail::page_store> pages, std::size_t most, std::size_t least)
    : mapper_{std::move(pages), most, least} {}

virtual_pages::~virtual_pages() {
  if (store().is_gone()) return;
  auto const& pages = table_.pages();
  for (auto const& [offset, page] : pages) announce_unmapping({offset, page.of->bytes});
  unmap_all(table_.take({pages.begin(), pages.end()}));
  retry_refused();
  if (table_.is_unmapped({0, address_space()})) mapper_.free_addresses();
}

bool virtual_pages::supported(class device device) noexcept {
  try {
    int value = 0;
    check(driver().device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                        device.ordinal()),
          "cuDeviceGetAttribute");
    return value != 0;
  } catch (cuda_error const&) { return false; }
}

std::size_t virtual_pages::next_page_size() const noexcept {
  auto const least = std::max(detail::smallest_page, granularity());
  auto const share = mapped_bytes() / page_fraction / granularity() * granularity();
  return std::clamp(share, least, std::max(detail::largest_page, least));
}

std::optional<std::size_t> virtual_pages::find_extent(std::size_t bytes) const noexcept {
  if (bytes == 0 || bytes > address_space()) return std::nullopt;
  return table_.find_extent(round_up(bytes), address_space());
}

CUresult virtual_pages::open_to(gpumem::device peer) noexcept {
  if (store().is_open_to(peer)) return CUDA_SUCCESS;
  auto const result = open_mapped_to(peer);
  return result == CUDA_SUCCESS ? store().open_to(peer) : result;
}

CUresult virtual_pages::open_mapped_to(gpumem::device peer) noexcept { return mapper_.open_to(peer, table_.pages()); }

outcome virtual_pages::refusal(page_extent run) const noexcept {
  if (store().is_gone()) return outcome::device_lost;
  if (run.bytes == 0 || run.offset % granularity() != 0) return outcome::invalid_argument;
  if (run.offset > address_space() || run.bytes > address_space() - run.offset) return outcome::too_large;
  return table_.is_unmapped(run) ? outcome::granted : outcome::invalid_argument;
}

expected<page_extent, failure> virtual_pages::map(std::size_t offset, std::size_t bytes, std::size_t page) noexcept {
  retry_refused();
  // Rounding up a size beyond the address space could overflow; refusal() finds it too large.
  page_extent const run{offset, bytes > address_space() ? bytes : round_up(bytes)};
  auto const reason = page % granularity() != 0 ? outcome::invalid_argument : refusal(run);
  if (reason != outcome::granted) return refused(reason, bytes, where().lost_error());
  try {
    auto const size = page != 0 ? page : next_page_size();
    // If the device had no memory at the last attempt, first try all bytes as one page: a refusal then costs one call,
    // while creating and undoing single pages would cost many.
    if (store().is_full() && run.bytes > size) {
      auto whole = detail::plan_pages(run, run.bytes);
      auto& probe = *whole.begin()->second.of;
      bool const has_memory = store().has_memory(probe);
      if (probe.held) table_.keep_refused(whole); // the driver has refused to destroy it
      if (!has_memory) return unexpected<failure>{detail::refusal_of(CUDA_ERROR_OUT_OF_MEMORY, bytes)};
    }
    auto const made = install(detail::plan_pages(run, size), run, bytes);
    if (made) store().watchers().each([&](auto& each) { each.on_mapped(address_of(run.offset), run.bytes); });
    return made;
  } catch (std::bad_alloc const&) { return unexpected<failure>{detail::no_host_memory(bytes)}; }
}

expected<page_extent, failure> virtual_pages::alias(std::size_t offset, std::size_t target) noexcept {
  retry_refused();
  auto const entry = table_.pages().find(offset);
  if (entry == table_.pages().end()) return refused(outcome::invalid_argument, 0);
  auto const& of = entry->second.of;
  if (of->pins > 0) return refused(outcome::invalid_argument, of->bytes, CUDA_ERROR_NOT_PERMITTED);
  page_extent const run{target, of->bytes};
  auto const why = refusal(run);
  if (why != outcome::granted) return refused(why, run.bytes, where().lost_error());
  try {
    detail::page_map pages;
    pages.emplace(target, detail::mapped_page{of});
    return install(std::move(pages), run, run.bytes);
  } catch (std::bad_alloc const&) { return unexpected<failure>{detail::no_host_memory(run.bytes)}; }
}

expected<page_extent, failure> virtual_pages::move(std::span<page_origin const> runs, std::size_t target) noexcept {
  retry_refused();
  page_extent target_extent{target, 0};
  detail::page_map pages;
  try {
    for (auto const& [from, run] : runs) {
      auto const leaving = from->table_.pages_of(run);
      if (leaving.empty()) return refused(outcome::invalid_argument, run.bytes);
      if (detail::any_pinned(leaving)) return refused(outcome::invalid_argument, run.bytes, CUDA_ERROR_NOT_PERMITTED);
      for (auto const& [offset, page] : leaving) {
        pages.emplace_hint(pages.end(), target_extent.end(), detail::mapped_page{page.of});
        target_extent.bytes += page.of->bytes;
      }
    }
  } catch (std::bad_alloc const&) { return unexpected<failure>{detail::no_host_memory(target_extent.bytes)}; }
  auto const why = refusal(target_extent);
  if (why != outcome::granted) return refused(why, target_extent.bytes, where().lost_error());
  auto const moved = install(std::move(pages), target_extent, target_extent.bytes);
  if (!moved) return moved;
  for (auto const& [from, run] : runs) {
    store().watchers().each(
        [&](auto& each) { each.on_moved(from->address_of(run.offset), address_of(target), run.bytes); });
    from->mapper_.announce_unmapping(run);
    from->unmap_all(from->table_.take(from->table_.pages_of(run)));
    target += run.bytes;
  }
  return moved;
}

expected<page_extent, failure> virtual_pages::move(std::size_t offset, std::size_t target) noexcept {
  auto const found = table_.pages().find(offset);
  page_origin const one{this, {offset, found == table_.pages().end() ? 0 : found->second.of->bytes}};
  return move({&one, 1}, target);
}

expected<page_extent, failure> virtual_pages::install(detail::page_map pages, page_extent run,
                                                      std::size_t requested) noexcept {
  if (auto const why = mapper_.map(pages, run, requested)) {
    table_.keep_refused(pages);
    return unexpected<failure>{*why};
  }
  table_.add(pages);
  return run;
}

bool virtual_pages::unmap(std::size_t offset, std::size_t bytes) noexcept {
  retry_refused();
  auto const going = table_.pages_of({offset, bytes});
  if (going.empty() || detail::any_pinned(going)) return false;
  announce_unmapping({offset, bytes});
  unmap_all(table_.take(going));
  return true;
}

void virtual_pages::announce_unmapping(page_extent run) const noexcept {
  store().watchers().each([&](auto& each) { each.on_unmapping(address_of(run.offset), run.bytes); });
  mapper_.announce_unmapping(run);
}

void virtual_pages::unmap_all(detail::page_map pages) noexcept {
  mapper_.unmap(pages);
  table_.keep_refused(pages);
}

void virtual_pages::retry_refused() noexcept { mapper_.retry(table_.refused_pages()); }

std::size_t virtual_pages::offset_of(void const* address) const noexcept {
  return reinterpret_cast<std::uintptr_t>(address) - static_cast<std::uintptr_t>(mapper_.base());
}

std::optional<page_info> virtual_pages::page_of(void const* address) const noexcept {
  auto const found = table_.find_containing(offset_of(address));
  return found == table_.pages().end() ? std::nullopt : std::optional{detail::info_of(*found)};
}

bool virtual_pages::pin(void const* address, std::size_t bytes) noexcept {
  auto const pages = table_.pages_holding({offset_of(address), bytes});
  for (auto const& [offset, page] : pages) ++page.of->pins;
  return !pages.empty();
}

void virtual_pages::unpin(void const* address, std::size_t bytes) noexcept {
  for (auto const& [offset, page] : table_.pages_holding({offset_of(address), bytes})) {
    if (page.of->pins > 0) --page.of->pins;
  }
}

expected<exported_page, failure> virtual_pages::export_page(void const* address) noexcept {
  auto const found = table_.find_containing(offset_of(address));
  if (found == table_.pages().end()) return refused(outcome::invalid_argument, 0);
  auto& page = *found->second.of;
  auto const file = store().export_page(page);
  if (!file) return unexpected<failure>{file.error()};
  ++page.pins;
  return exported_page{*file, reinterpret_cast<void*>(mapper_.base() + found->first), page.bytes};
}

} // namespace gpumem
