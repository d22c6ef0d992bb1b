// Blocks of a source, from the driver to the user and back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/figures.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
module gpumem:source_state.impl;
import :source_state;
import :cuda;
import :device;
import :error;
import :misuse;
import :stream;
import :sync;

namespace gpumem::detail {

expected<void*, failure> source_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  if (!key.capturing()) serve_deferred();
  auto const padding = alignment > natural_ ? alignment - natural_ : 0;
  auto base = draw(bytes + padding, alignment);
  if (base) {
    auto const address = reinterpret_cast<std::uintptr_t>(*base);
    auto* const pointer = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
    if (note(pointer, {*base, bytes + padding, bytes, alignment, key.by_identity()})) return pointer;
    give(*base, alignment);
    base = unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }
  sync::lock const held{guard_};
  ++counts_.failures;
  return unexpected<failure>{failure{base.error().what, base.error().code, bytes}};
}

bool source_state::note(void* pointer, block const& given) noexcept try {
  sync::lock const held{guard_};
  live_.emplace(pointer, given);
  counts_.live += given.bytes;
  counts_.reserved += given.drawn;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  counts_.peak_reserved = std::max(counts_.peak_reserved, counts_.reserved);
  ++counts_.allocations;
  return true;
} catch (std::bad_alloc const&) { return false; }

void source_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
  if (!key.capturing()) serve_deferred();
  if (auto leaving = retire(key, pointer, bytes)) dispose(key, std::move(leaving));
}

source_state::block_map::node_type source_state::retire(stream_key const& key, void* pointer,
                                                        std::size_t bytes) noexcept {
  auto wrong = misuse::kind::foreign_pointer;
  std::size_t right_size = 0;
  {
    sync::lock const held{guard_};
    auto const found = live_.find(pointer);
    if (found != live_.end() && found->second.bytes == bytes) {
      counts_.live -= bytes;
      ++counts_.frees;
      return live_.extract(found);
    }
    if (found != live_.end()) {
      wrong = misuse::kind::wrong_size;
      right_size = found->second.bytes;
    } else if (deferred_.contains(pointer)) {
      wrong = misuse::kind::double_free;
    }
  }
  report_misuse({wrong, pointer, bytes, right_size, key.id(), name_});
  return {};
}

void source_state::dispose(stream_key const& key, block_map::node_type leaving) noexcept {
  bool const gone = !key.capturing() && give_behind(key, leaving.mapped());
  sync::lock const held{guard_};
  if (gone) {
    counts_.reserved -= leaving.mapped().drawn;
  } else {
    leaving.mapped().freed_on = key.by_identity();
    deferred_.insert(std::move(leaving));
    any_deferred_.store(true, std::memory_order_relaxed);
  }
}

bool source_state::give_behind(stream_key const& key, block const& leaving) noexcept {
  auto waited = key.wait_on_host();
  if (waited == CUDA_ERROR_INVALID_HANDLE && key.has_handle()) waited = key.by_identity().wait_on_host();
  if (sticky(waited)) {
    lose(key, waited); // no work runs there any more
  } else if (waited != CUDA_SUCCESS) {
    return false;
  }
  return give(leaving.base, leaving.alignment);
}

void source_state::serve_deferred() noexcept {
  if (!any_deferred_.load(std::memory_order_relaxed)) return;
  block_map waiting;
  {
    sync::lock const held{guard_};
    waiting.swap(deferred_);
    any_deferred_.store(false, std::memory_order_relaxed);
  }
  while (!waiting.empty()) {
    auto leaving = waiting.extract(waiting.begin());
    auto const key = leaving.mapped().freed_on.by_identity();
    dispose(key, std::move(leaving));
  }
}

figures source_state::read_figures() noexcept {
  sync::lock const held{guard_};
  auto now = counts_;
  now.granted = now.reserved;
  return now;
}

bool capture_forbids(CUresult error) noexcept {
  switch (error) {
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
  case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
  case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
  case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
  case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: return true;
  default: return false;
  }
}

failure refusal_of(CUresult error, std::size_t bytes) noexcept {
  auto const what = error == CUDA_ERROR_OUT_OF_MEMORY ? outcome::exhausted
                    : capture_forbids(error)          ? outcome::capture_unsupported
                    : sticky(error)                   ? outcome::device_lost
                                                      : outcome::driver_error;
  return {what, error, bytes};
}

} // namespace gpumem::detail
