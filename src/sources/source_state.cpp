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
import :driver;
import :error;
import :fork;
import :misuse;
import :stream;
import :sync;
import :timeline;

namespace gpumem::detail {

expected<void*, failure> source_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  if (!key.capturing()) serve_deferred(key);
  auto const padding = alignment > natural_ ? alignment - natural_ : 0;
  auto base = draw(key, bytes + padding, alignment);
  if (base) {
    auto const address = reinterpret_cast<std::uintptr_t>(*base);
    auto* const pointer = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
    block const given{*base, bytes + padding, bytes, alignment, key.by_identity()};
    if (note(pointer, given)) return pointer;
    give_behind(key, given);
    base = unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }
  sync::lock const held{guard_};
  ++counts_.failures;
  return unexpected<failure>{failure{base.error().what, base.error().code, bytes}};
}

bool source_state::note(void* pointer, block const& given) noexcept try {
  sync::lock const held{guard_};
  if (auto const [at, fresh] = live_.try_emplace(pointer, given); !fresh) {
    counts_.live -= at->second.bytes; // what was here went when its device was reset
    counts_.reserved -= at->second.drawn;
    at->second = given;
  }
  counts_.live += given.bytes;
  counts_.reserved += given.drawn;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  counts_.peak_reserved = std::max(counts_.peak_reserved, counts_.reserved);
  ++counts_.allocations;
  return true;
} catch (std::bad_alloc const&) { return false; }

bool source_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
  if (!key.capturing()) serve_deferred(key);
  auto leaving = retire(key, pointer, bytes);
  if (!leaving) return false;
  dispose(key, std::move(leaving));
  return true;
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

// Without the handle of a stream that may die only an event tells that its work is over: the use ends here.
void source_state::dispose(stream_key const& key, block_map::node_type leaving) noexcept {
  auto& freed = leaving.mapped();
  if (!key.has_handle() && key.order().is_mortal() && freed.freed_at == 0) freed.freed_at = key.end_use(freed.drawn);
  bool const gone = !key.capturing() && give_behind(key, leaving.mapped());
  if (auto done = end_free(key, std::move(leaving), gone)) given_behind(key, std::move(done));
}

source_state::block_map::node_type source_state::end_free(stream_key const& key, block_map::node_type leaving,
                                                          bool gone) noexcept {
  sync::lock const held{guard_};
  if (gone) {
    counts_.reserved -= leaving.mapped().drawn;
    return leaving;
  }
  // The timeline serves no other stream before an event that covers this use is complete.
  auto& kept = leaving.mapped();
  if (kept.freed_at == 0) kept.freed_at = key.end_use(kept.drawn);
  kept.freed_on = key.by_identity();
  deferred_.insert(std::move(leaving));
  any_deferred_.store(true, std::memory_order_relaxed);
  return {};
}

bool source_state::give_after_wait(stream_key const& key, block const& leaving) noexcept {
  auto& order = key.order();
  if (!key.has_handle() && order.is_mortal()) {
    order.poll();
    if (!order.completed(leaving.freed_at)) order.cover(std::nullopt);
    return order.completed(leaving.freed_at) && give(leaving.base, leaving.alignment);
  }
  auto const waited = key.wait_on_host();
  if (sticky(waited)) {
    lose(key, waited); // no work runs there any more
  } else if (waited != CUDA_SUCCESS) {
    return false;
  }
  return give(leaving.base, leaving.alignment);
}

// Inside a call on the same stream its handle may be touched.
void source_state::serve_deferred(stream_key const& now) noexcept {
  if (!any_deferred_.load(std::memory_order_relaxed)) return;
  auto waiting = take_deferred([&](stream_key const& freed_on) { return may_serve(freed_on, now); });
  while (!waiting.empty()) {
    auto leaving = waiting.extract(waiting.begin());
    auto const freed_on = leaving.mapped().freed_on;
    dispose(freed_on == now ? now : freed_on.by_identity(), std::move(leaving));
  }
}

figures source_state::read_figures() noexcept {
  if (forked()) return {};
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
