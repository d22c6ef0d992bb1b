// virtual_pages: maps, unmaps, aliases, moves and exports pages. A call that fails midway is undone.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <ranges>
#include <span>
#include <utility>
#include <vector>
module gpumem:virtual_pages_map.impl;
import :virtual_pages;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :source_state;

namespace gpumem {
namespace {

unexpected<failure> refused(outcome what, std::size_t bytes, CUresult code = CUDA_SUCCESS) noexcept {
  return unexpected<failure>{failure{what, code, bytes}};
}

} // namespace

template <class Call> CUresult virtual_pages::on_device(Call call) noexcept {
  if (is_gone()) return call();
  return detail::call_on(device_, call);
}

// Returns outcome::granted if pages can be mapped at the range; otherwise the reason why not.
outcome virtual_pages::refusal(page_extent run) const noexcept {
  if (is_gone()) return outcome::device_lost;
  if (run.bytes == 0 || run.offset % granularity_ != 0) return outcome::invalid_argument;
  if (run.offset > address_space_ || run.bytes > address_space_ - run.offset) return outcome::too_large;
  return is_unmapped(run) ? outcome::granted : outcome::invalid_argument;
}

expected<page_extent, failure> virtual_pages::map(std::size_t offset, std::size_t bytes, std::size_t page) noexcept {
  retry_unreleased();
  // A size beyond the address space is not rounded up, which could overflow; refusal() then finds it too large.
  page_extent const run{offset, bytes > address_space_ ? bytes : round_up(bytes)};
  auto const why = page % granularity_ != 0 ? outcome::invalid_argument : refusal(run);
  if (why != outcome::granted) return refused(why, bytes, device_.lost_error());
  try {
    auto pages = planned(run, page != 0 ? page : next_page_size());
    // If the device had no memory at the last attempt, this first creates one page of all bytes. If the driver refuses,
    // that costs one call, while creating and releasing several pages would cost many.
    if (full_ && pages.size() > 1 && !has_memory(planned(run, run.bytes))) {
      return unexpected<failure>{detail::refusal_of(CUDA_ERROR_OUT_OF_MEMORY, bytes)};
    }
    return install(std::move(pages), run, bytes);
  } catch (std::bad_alloc const&) { return refused(outcome::exhausted, bytes); }
}

expected<page_extent, failure> virtual_pages::alias(std::size_t offset, std::size_t to) noexcept {
  retry_unreleased();
  auto const found = pages_.find(offset);
  if (found == pages_.end()) return refused(outcome::invalid_argument, 0);
  auto const& of = found->second.of;
  if (of->pins > 0) return refused(outcome::invalid_argument, of->bytes, CUDA_ERROR_NOT_PERMITTED);
  page_extent const run{to, of->bytes};
  auto const why = refusal(run);
  if (why != outcome::granted) return refused(why, run.bytes, device_.lost_error());
  try {
    page_map made;
    made.emplace(to, mapped_page{of});
    return install(std::move(made), run, run.bytes);
  } catch (std::bad_alloc const&) { return refused(outcome::exhausted, run.bytes); }
}

expected<page_extent, failure> virtual_pages::move(std::span<page_extent const> runs, std::size_t to) noexcept {
  retry_unreleased();
  page_extent there{to, 0};
  page_map made;
  try {
    for (auto const& run : runs) {
      auto const leaving = made_of(run);
      if (leaving.empty()) return refused(outcome::invalid_argument, run.bytes);
      if (any_pinned(leaving)) return refused(outcome::invalid_argument, run.bytes, CUDA_ERROR_NOT_PERMITTED);
      for (auto const& [offset, page] : leaving) {
        made.emplace_hint(made.end(), there.end(), mapped_page{page.of});
        there.bytes += page.of->bytes;
      }
    }
  } catch (std::bad_alloc const&) { return refused(outcome::exhausted, there.bytes); }
  auto const why = refusal(there);
  if (why != outcome::granted) return refused(why, there.bytes, device_.lost_error());
  auto const moved = install(std::move(made), there, there.bytes);
  if (!moved) return moved;
  for (auto const& run : runs) unmap(run.offset, run.bytes);
  return moved;
}

expected<page_extent, failure> virtual_pages::move(std::size_t offset, std::size_t to) noexcept {
  auto const found = pages_.find(offset);
  page_extent const run{offset, found == pages_.end() ? 0 : found->second.of->bytes};
  return move({&run, 1}, to);
}

// Returns the pages of a range, not yet created. Throws std::bad_alloc.
virtual_pages::page_map virtual_pages::planned(page_extent run, std::size_t page) const {
  page_map made;
  for (auto at = run.offset; at < run.end();) {
    auto const bytes = std::min(page, run.end() - at);
    auto of = std::make_shared<memory>();
    of->bytes = bytes;
    made.emplace_hint(made.end(), at, mapped_page{std::move(of)});
    at += bytes;
  }
  return made;
}

expected<page_extent, failure> virtual_pages::install(page_map made, page_extent run, std::size_t requested) noexcept {
  auto result = CUDA_SUCCESS;
  bool complete = false;
  auto const entered = on_device([&] {
    result = map_all(made, run);
    complete = result == CUDA_SUCCESS && notify_mapped(run);
    if (!complete) unmap_all(made);
    return CUDA_SUCCESS;
  });
  if (complete) {
    pages_.merge(made);
    return run;
  }
  if (entered != CUDA_SUCCESS) result = entered;
  result = device_.interpret(result);
  if (result == CUDA_SUCCESS) return refused(outcome::driver_error, requested); // on_mapped refused the range
  return unexpected<failure>{detail::refusal_of(result, requested)};
}

// Returns whether the device has memory for the page. To find out, creates the page and releases it again.
bool virtual_pages::has_memory(page_map page) noexcept {
  auto result = CUDA_SUCCESS;
  on_device([&] {
    result = create(*page.begin()->second.of);
    return CUDA_SUCCESS;
  });
  unmap_all(page);
  return result != CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult virtual_pages::map_all(page_map& made, page_extent run) noexcept {
  for (auto& [offset, page] : made) {
    if (auto const result = attach(offset, page); result != CUDA_SUCCESS) return result;
  }
  return driver().mem_set_access(base_ + run.offset, run.bytes, rights_.data(), rights_.size());
}

CUresult virtual_pages::open_to(gpumem::device peer) noexcept try {
  CUmemAccessDesc const right{{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  auto const of_peer = [&](CUmemAccessDesc const& one) { return one.location.id == peer.ordinal(); };
  if (std::ranges::any_of(rights_, of_peer)) return CUDA_SUCCESS;
  rights_.reserve(rights_.size() + 1);
  auto result = CUDA_SUCCESS;
  auto const entered = on_device([&] {
    for (auto const& [offset, page] : pages_) {
      if (result == CUDA_SUCCESS) result = driver().mem_set_access(base_ + offset, page.of->bytes, &right, 1);
    }
    return result;
  });
  if (entered != CUDA_SUCCESS) result = entered;
  if (result == CUDA_SUCCESS) rights_.push_back(right);
  return device_.interpret(result);
} catch (std::bad_alloc const&) { return CUDA_ERROR_OUT_OF_MEMORY; }

CUresult virtual_pages::create(memory& of) noexcept {
  auto const result = driver().mem_create(&of.handle, of.bytes, &properties_, 0);
  full_ = result == CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return result;
  of.held = true;
  mapped_bytes_ += of.bytes;
  return result;
}

CUresult virtual_pages::attach(std::size_t offset, mapped_page& at) noexcept {
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

bool virtual_pages::notify_mapped(page_extent run) const noexcept {
  try {
    return !options_.on_mapped || options_.on_mapped(reinterpret_cast<void*>(base_ + run.offset), run.bytes);
  } catch (...) { return false; } // an exception refuses the mapping, as false does
}

// Returns the pages of the range; an empty span if the range does not consist of whole pages.
virtual_pages::page_span virtual_pages::made_of(page_extent run) const noexcept {
  auto const first = pages_.find(run.offset);
  auto last = first;
  auto next = run.offset;
  for (; last != pages_.end() && last->first == next && next < run.end(); ++last) next += last->second.of->bytes;
  return next == run.end() ? page_span{first, last} : page_span{};
}

bool virtual_pages::any_pinned(page_span const& pages) noexcept {
  return std::ranges::any_of(pages, [](auto const& each) { return each.second.of->pins > 0; });
}

bool virtual_pages::unmap(std::size_t offset, std::size_t bytes) noexcept {
  retry_unreleased();
  auto const going = made_of({offset, bytes});
  if (going.empty() || any_pinned(going)) return false;
  if (options_.on_unmapping && !is_gone()) options_.on_unmapping(reinterpret_cast<void*>(base_ + offset), bytes);
  page_map leaving;
  for (auto at = going.begin(); at != going.end();) leaving.insert(pages_.extract(at++));
  unmap_all(leaving);
  return true;
}

// Unmaps a page. If that was its last mapping, releases its memory. Returns false if the driver refuses.
bool virtual_pages::unmap_page(std::size_t offset, mapped_page& at) noexcept {
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
  mapped_bytes_ -= of.bytes;
  return true;
}

// Unmaps all pages. A page that the driver refuses to unmap or release moves to `unreleased_`.
void virtual_pages::unmap_all(page_map& leaving) noexcept {
  on_device([&] {
    for (auto at = leaving.begin(); at != leaving.end();)
      at = unmap_page(at->first, at->second) ? leaving.erase(at) : ++at;
    return CUDA_SUCCESS;
  });
  while (!leaving.empty()) unreleased_.insert(leaving.extract(leaving.begin()));
}

void virtual_pages::retry_unreleased() noexcept {
  if (unreleased_.empty()) return;
  on_device([&] {
    for (auto at = unreleased_.begin(); at != unreleased_.end();)
      at = unmap_page(at->first, at->second) ? unreleased_.erase(at) : ++at;
    return CUDA_SUCCESS;
  });
}

expected<int, failure> virtual_pages::export_page(void const* address) noexcept {
  auto const found = find_containing(address);
  if (!options_.exportable || found == pages_.end()) return refused(outcome::invalid_argument, 0);
  auto& of = *found->second.of;
  if (is_gone()) return refused(outcome::device_lost, of.bytes, device_.lost_error());
  int file = -1;
  auto const result = device_.interpret(on_device([&] {
    return driver().mem_export_to_shareable_handle(&file, of.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }));
  if (result != CUDA_SUCCESS) return unexpected<failure>{detail::refusal_of(result, of.bytes)};
  ++of.pins;
  return file;
}

} // namespace gpumem
