// Makes pools over a device, and records the blocks of a stack of resources.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda.h>

#include "failure.hpp"
#include "pool.hpp"

import gpumem;

#include "held_pool.hpp"

namespace gpumem::c {
namespace {

/// Returns whether other processes can map the device's pages.
bool can_export(int device) {
  int able = 0;
  auto const asked = gpumem::driver_api::driver().device_get_attribute(
      &able, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
  return asked == CUDA_SUCCESS && able != 0;
}

} // namespace

std::unique_ptr<gpumem_pool> make_plain_pool(int device, pool_options options) {
  catch_misuse();
  return std::make_unique<held_pool<pool_resource<cuda_resource>>>(
      device, pool_resource{gpumem::device{device}, std::move(options)});
}

bool draws_pages(int device, pool_options const& options) {
  bool const small = options.limit && options.limit < (std::size_t{2} << 20);
  return options.pages && !options.chunk_size && !detail::passes_through(options.pass_through) && !small &&
         extend::virtual_pages::supported(gpumem::device{device});
}

std::unique_ptr<gpumem_pool> make_observed_pool(int device, pool_options options, page_observer observer) {
  catch_misuse();
  if (!draws_pages(device, options)) throw std::invalid_argument{"gpumem: a pool without pages cannot be observed"};
  virtual_pages_options pages;
  pages.exportable = can_export(device);
  pages.on_mapped = [observer](void* address, std::size_t bytes) {
    observer(address, bytes, true);
    return true;
  };
  pages.on_unmapping = [observer](void* address, std::size_t bytes) { observer(address, bytes, false); };
  return std::make_unique<held_pool<pool_resource<cuda_resource>>>(
      device, pool_resource{gpumem::device{device}, std::move(options), std::move(pages)});
}

void* recorded_pool::keep(void* pointer, record block) {
  if (!pointer) return nullptr;
  support::scoped_lock const lock{mutex_};
  auto const bytes = block.bytes;
  if (!live_.insert_or_assign(pointer, std::move(block)).second) return pointer;
  live_bytes_ += bytes;
  peak_live_ = std::max(peak_live_, live_bytes_);
  return pointer;
}

// Removes and returns the record of a block. Called before the block is freed, because then another thread may get its
// address. free_taken() puts the record back if the free is refused.
recorded_pool::records::node_type recorded_pool::take(void* pointer, std::optional<std::size_t> bytes) {
  support::scoped_lock const lock{mutex_};
  auto const found = live_.find(pointer);
  if (found == live_.end()) throw std::invalid_argument{"gpumem: the pointer is not live in the pool"};
  if (bytes && *bytes != found->second.bytes) {
    throw std::invalid_argument{"gpumem: the block has " + std::to_string(found->second.bytes) + " bytes, not " +
                                std::to_string(*bytes)};
  }
  live_bytes_ -= found->second.bytes;
  return live_.extract(found);
}

// Calls `free`, which frees the block of a record that take() has removed. If it throws, or reports a misuse, the block
// is still live, so the record is put back.
template <class Free> void recorded_pool::free_taken(records::node_type block, Free free) {
  auto const put_back = [&] {
    support::scoped_lock const lock{mutex_};
    live_bytes_ += block.mapped().bytes;
    live_.insert(std::move(block));
  };
  bool const before = std::exchange(misused, false);
  try {
    free(block.mapped());
  } catch (...) {
    misused = before;
    put_back();
    throw;
  }
  if (misused) put_back();
  misused = misused || before;
}

// Records a block that was allocated for the stream. If that fails, frees the block and throws.
void* recorded_pool::keep(void* pointer, stream_ref stream, std::size_t bytes, std::size_t alignment) {
  try {
    return keep(pointer, {bytes, pointer ? extend::identify(stream, device_) : extend::stream_key::host(), {}});
  } catch (...) {
    resource_.deallocate(stream, pointer, bytes, alignment);
    throw;
  }
}

void* recorded_pool::allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
  return keep(resource_.allocate(stream, bytes, alignment), stream, bytes, alignment);
}

void* recorded_pool::acquire(stream_ref stream, std::size_t bytes, std::size_t alignment,
                             std::chrono::nanoseconds longest) {
  return keep(acquire_from(resource_, stream, bytes, alignment, longest), stream, bytes, alignment);
}

void* recorded_pool::try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept {
  auto* const pointer = c::try_allocate_keyed(resource_, key, bytes, alignment);
  auto const& stream = *static_cast<extend::stream_key const*>(key);
  try {
    return keep(pointer, {bytes, stream, {}});
  } catch (...) { // the host has no memory for the record
    auto const to = extend::services_of(resource_);
    to.table->deallocate_keyed(to.state, &stream, pointer, bytes, alignment);
    return nullptr;
  }
}

std::optional<gpumem_pool::owned_block> recorded_pool::find_owned(void const* pointer) {
  support::scoped_lock const lock{mutex_};
  auto const found = live_.find(pointer);
  if (found == live_.end()) return std::nullopt;
  return owned_block{found->second.bytes, found->second.stream.identity().timeline().handle()};
}

std::optional<std::size_t> recorded_pool::try_free(void* pointer) {
  auto const entry = find_owned(pointer);
  if (!entry) return std::nullopt;
  free_taken(take(pointer, entry->bytes), [&](record const& block) {
    auto const key = key_of_owner(block.stream);
    for (auto const& use : block.uses) {
      key.identity().has_handle() ? use.make_wait(stream_ref{key.identity().handle()}) : use.synchronize();
    }
    auto const to = extend::services_of(resource_);
    to.table->deallocate_keyed(to.state, &key, pointer, block.bytes, GPUMEM_ALIGNMENT);
  });
  return entry->bytes;
}

void recorded_pool::free(stream_ref stream, void* pointer, std::optional<std::size_t> bytes) {
  if (!pointer) return;
  free_taken(take(pointer, bytes), [&](record const& block) {
    if (!block.uses.empty()) extend::identify(stream, device_); // throws for a stream that must not wait for the uses
    for (auto const& use : block.uses) use.make_wait(stream);
    resource_.deallocate(stream, pointer, block.bytes, GPUMEM_ALIGNMENT);
  });
}

void* recorded_pool::allocate_sync(std::size_t bytes, std::size_t alignment) {
  auto* const pointer = resource_.allocate_sync(bytes, alignment);
  try {
    return keep(pointer, {bytes, extend::stream_key::host(), {}});
  } catch (...) {
    resource_.deallocate_sync(pointer, bytes, alignment);
    throw;
  }
}

void recorded_pool::free_sync(void* pointer, std::size_t bytes) {
  if (!pointer) return;
  free_taken(take(pointer, bytes), [&](record const&) { resource_.deallocate_sync(pointer, bytes, GPUMEM_ALIGNMENT); });
}

void recorded_pool::record_use(void* pointer, stream_ref stream) {
  if (!pointer) return;
  auto const key = extend::identify(stream, device_);
  auto const from = extend::services_of(resource_);
  if (from.table->serves_stream && !from.table->serves_stream(from.state, &key))
    throw detail::rule_error{broken_rule::unopened_device, "record_use"};
  event use{gpumem::device{key.identity().timeline().device()}};
  use.record(stream);
  support::scoped_lock const lock{mutex_};
  auto const found = live_.find(pointer);
  if (found == live_.end()) throw std::invalid_argument{"gpumem: the pointer is not live in the pool"};
  found->second.uses.push_back(std::move(use));
}

gpumem::statistics recorded_pool::statistics() {
  auto const known = statistics_of(resource_);
  if (!known) throw std::invalid_argument{"gpumem: the outermost resource of this stack keeps no statistics"};
  auto now = *known;
  now.peak_reserved = std::max(now.peak_reserved, now.reserved);
  support::scoped_lock const lock{mutex_};
  now.peak_live = std::max({now.peak_live, now.live, peak_live_});
  return now;
}

bool recorded_pool::synchronize(std::chrono::nanoseconds longest) {
  auto const deadline = std::chrono::steady_clock::now() + longest;
  bool all = true;
  for (auto const& each : parts_.synchronize) {
    auto const left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now());
    all = each(left) && all;
  }
  return all;
}

void recorded_pool::reset_peaks() {
  for (auto const& each : parts_.reset_peaks) each();
  support::scoped_lock const lock{mutex_};
  peak_live_ = live_bytes_;
}

void recorded_pool::reserve(std::size_t) {
  throw std::invalid_argument{"gpumem: only a pool, fixed or arena can reserve memory, not a stack over one"};
}

void recorded_pool::set_limit(std::size_t) {
  throw std::invalid_argument{"gpumem: only a pool, fixed or arena has a limit that can change, not a stack over one"};
}

gpumem_pool::exported_page recorded_pool::export_page(void const*) {
  throw std::invalid_argument{"gpumem: only a pool over pages can share its memory, not a stack over one"};
}

void recorded_pool::visit_ranges(std::function<void(gpumem_range const&)> const&) {
  throw std::invalid_argument{"gpumem: only a pool, fixed or arena knows its ranges, not a stack over one"};
}

void recorded_pool::set_label(void const* pointer, std::string_view label) {
  auto const from = extend::services_of(resource_);
  if (from.table->set_label && from.table->set_label(from.state, pointer, detail::label_number(label))) return;
  throw std::invalid_argument{"gpumem: the stack has no live block at this address, or names no blocks"};
}

void recorded_pool::write_snapshot(snapshot_file const&) {
  throw std::invalid_argument{"gpumem: only a pool, fixed or arena has snapshots, not a stack over one"};
}

gpumem_growable* recorded_pool::make_growable(stream_ref, std::string_view) {
  throw std::invalid_argument{"gpumem: only a pool over pages lends pages, not a stack over one"};
}

gpumem_graph_memory* recorded_pool::make_graph_memory() {
  throw std::invalid_argument{"gpumem: only a pool, fixed or arena serves captures, not a stack over one"};
}

void recorded_pool::restore(std::span<gpumem_range const>) {
  throw std::invalid_argument{"gpumem: only graph memory can be restored"};
}

gpumem_pool::found_block recorded_pool::find(void const* pointer) {
  support::scoped_lock const lock{mutex_};
  auto const found = live_.lower_bound(pointer); // in descending order: the greatest address up to the pointer
  if (found == live_.end()) return {};
  auto* const base = static_cast<char const*>(found->first);
  if (static_cast<char const*>(pointer) - base >= static_cast<std::ptrdiff_t>(found->second.bytes)) return {};
  return {const_cast<char*>(base), found->second.bytes, found->second.bytes, found->second.stream.identity().id(),
          true};
}

} // namespace gpumem::c
