// Allocations, frees and deferred frees of a source.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
module gpumem:source_state.impl;
import :source_state;
import :cuda;
import :device;
import :driver;
import :error;
import :misuse;
import :process;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

expected<void*, failure> source_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  bool const capturing = key.asked().identity().capturing();
  if (!capturing) run_deferred_frees(key);
  auto const padding = alignment > natural_ ? alignment - natural_ : 0;
  auto base = capturing ? unexpected<failure>{failure{outcome::capture_unsupported, 0, bytes}}
                        : allocate_memory(key, bytes + padding, alignment);
  if (base) {
    auto const address = reinterpret_cast<std::uintptr_t>(*base);
    auto* const pointer = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
    block const given{*base, bytes + padding, bytes, alignment, key.by_identity()};
    if (track_live(pointer, given)) return pointer;
    if (free_in_order(key, given)) freed_in_order(key);
    base = unexpected<failure>{no_host_memory(bytes)};
  }
  sync::lock const lock{mutex_};
  counts_.failures += !key.context().goes_on_after(base.error().reason);
  return unexpected<failure>{failure{base.error().reason, base.error().code, bytes}};
}

bool source_state::track_live(void* pointer, block const& block) noexcept try {
  sync::lock const lock{mutex_};
  if (auto const [at, fresh] = live_.try_emplace(pointer, block); !fresh) {
    counts_.live -= at->second.bytes; // the old block was lost in a reset of its device
    counts_.reserved -= at->second.allocated;
    at->second = block;
  }
  counts_.live += block.bytes;
  counts_.reserved += block.allocated;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  counts_.peak_reserved = std::max(counts_.peak_reserved, counts_.reserved);
  ++counts_.allocations;
  return true;
} catch (std::bad_alloc const&) { return false; }

bool source_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
  if (!key.identity().capturing()) run_deferred_frees(key);
  auto returned = retire(key, pointer, bytes);
  if (!returned) return false;
  dispose(key, std::move(returned));
  return true;
}

source_state::block_map::node_type source_state::retire(stream_key const& key, void* pointer,
                                                        std::size_t bytes) noexcept {
  auto wrong = misuse::kind::foreign_pointer;
  std::size_t right_size = 0;
  {
    sync::lock const lock{mutex_};
    auto const entry = live_.find(pointer);
    if (entry != live_.end() && entry->second.bytes == bytes) {
      counts_.live -= bytes;
      ++counts_.frees;
      return live_.extract(entry);
    }
    if (entry != live_.end()) {
      wrong = misuse::kind::wrong_size;
      right_size = entry->second.bytes;
    } else if (deferred_.contains(pointer)) {
      wrong = misuse::kind::double_free;
    }
  }
  report_misuse({wrong, pointer, bytes, right_size, key.identity().id(), name_});
  return {};
}

// If the call brings no handle of a mortal stream, only an event can show that the work on the block is complete. So
// the free gets an epoch before it is tried. Once an event of this epoch is complete, the block can be freed.
void source_state::dispose(stream_key const& key, block_map::node_type returned) noexcept {
  auto& freed = returned.mapped();
  if (!key.identity().has_handle() && key.identity().timeline().is_mortal() && freed.freed_at == 0)
    freed.freed_at = key.identity().end_use(freed.allocated);
  bool const gone = !key.identity().capturing() && free_in_order(key, returned.mapped());
  end_free(key, std::move(returned), gone);
  if (gone) freed_in_order(key);
}

void source_state::end_free(stream_key const& key, block_map::node_type returned, bool gone) noexcept {
  sync::lock const lock{mutex_};
  if (gone) {
    counts_.reserved -= returned.mapped().allocated;
    return;
  }
  // With its epoch the free can be done even after the stream is destroyed: the stream's timeline passes to no new
  // stream before an event of that epoch is complete.
  auto& kept = returned.mapped();
  if (kept.freed_at == 0) kept.freed_at = key.identity().end_use(kept.allocated);
  kept.freed_on = key.by_identity();
  deferred_.insert(std::move(returned));
  any_deferred_.store(true, std::memory_order_relaxed);
}

bool source_state::free_after_wait(stream_key const& key, block const& returned) noexcept {
  auto& timeline = key.identity().timeline();
  if (!key.identity().has_handle() && timeline.is_mortal()) {
    timeline.poll();
    if (!timeline.completed(returned.freed_at)) timeline.cover(std::nullopt);
    return timeline.completed(returned.freed_at) && free_memory(returned);
  }
  auto const waited = key.identity().wait_on_host();
  if (is_sticky(waited)) {
    mark_lost(key, waited); // no work runs on a lost device, so the block can be freed
  } else if (waited != CUDA_SUCCESS) {
    return false;
  }
  return free_memory(returned);
}

// A deferred free on the stream of this call can use the stream handle that the call has brought. The handles of other
// streams must not be used, since these streams may be destroyed.
void source_state::run_deferred_frees(stream_key const& now) noexcept {
  if (!any_deferred_.load(std::memory_order_relaxed)) return;
  auto waiting = take_deferred([&](stream_key const& freed_on) { return may_free_inside(freed_on, now); });
  while (!waiting.empty()) {
    auto returned = waiting.extract(waiting.begin());
    auto const freed_on = returned.mapped().freed_on;
    dispose(freed_on == now ? now : freed_on.by_identity(), std::move(returned));
  }
}

statistics source_state::read_statistics() noexcept {
  if (forked()) return {};
  sync::lock const lock{mutex_};
  auto now = counts_;
  now.allocated = now.reserved;
  return now;
}

void source_state::reset_peak_live() noexcept {
  sync::lock const lock{mutex_};
  counts_.peak_live = counts_.live;
}

bool is_default_handle(CUstream handle) noexcept {
  return handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

std::optional<CUstream> usable_handle(stream_key const& key) noexcept {
  switch (key.identity().timeline().kind()) {
  case stream_kind::host: return std::nullopt;
  case stream_kind::null:
  case stream_kind::legacy: return CU_STREAM_LEGACY;
  case stream_kind::per_thread: return key.identity().has_handle() ? key.identity().handle() : CU_STREAM_LEGACY;
  default: return key.identity().has_handle() ? std::optional{key.identity().handle()} : std::nullopt;
  }
}

// Returns success if the stream does not capture, otherwise an error. For a stream that gpumem neither made nor
// adopted, the driver is not asked here. It was asked when the key got its handle, as in identify(), and this function
// is not called for a key that captures.
CUresult refuse_capture(stream_key const& key, CUstream handle) noexcept {
  if (auto const loss = lost_error_of(key.identity().timeline().device()); loss != CUDA_SUCCESS) return loss;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  bool const known = key.identity().has_handle() && !key.identity().timeline().owns_handle();
  auto const result = known ? CUDA_SUCCESS : driver().stream_is_capturing(handle, &status);
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? result : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
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
                    : is_sticky(error)                ? outcome::device_lost
                                                      : outcome::driver_error;
  return {what, error, bytes};
}

} // namespace gpumem::detail
