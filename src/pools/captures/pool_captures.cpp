// Begins and ends capture scopes, and finds the scope of a stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <optional>
#include <stdexcept>
module gpumem:pool_captures.impl;
import :pool_captures;
import :cuda;
import :device;
import :driver;
import :error;
import :graph_memory;
import :intrusive_list;
import :process;
import :shared_state;
import :stream;
import :stream_timeline;
import :sync;
import :timeline_registry;

namespace gpumem::detail {
namespace {

// The capture in which a stream takes part, as the driver reports it.
struct capture_state {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  inline bool is_active() const noexcept { return status == CU_STREAM_CAPTURE_STATUS_ACTIVE; }
};

// Asks the driver for the stream's capture. An error counts as no capture.
capture_state capture_of(stream_key const& key) noexcept {
  capture_state seen;
  // On another thread the handle of this per-thread default stream would mean another stream, so the driver is not
  // asked.
  bool const elsewhere = key.identity().timeline().kind() == stream_kind::per_thread &&
                         !timeline_registry::is_own_default(key.identity().timeline());
  if (elsewhere || !key.identity().has_handle()) return seen;
  auto const result = driver().stream_get_capture_info(key.identity().handle(), &seen.status, &seen.id, nullptr,
                                                       nullptr, nullptr, nullptr);
  return result == CUDA_SUCCESS ? seen : capture_state{};
}

stream_key identify_for_capture(stream_ref stream, std::optional<device> device) {
  throw_if_child();
  auto const key = device ? identify(stream, *device) : identify(stream);
  auto const kind = key.identity().timeline().kind();
  if (kind == stream_kind::legacy || kind == stream_kind::null)
    throw std::invalid_argument{"gpumem: a capture scope needs a stream that can capture: not the legacy default "
                                "stream, nor handle 0 unless set_default_stream() has set its meaning to per_thread"};
  return key;
}

} // namespace

expected<state_ptr<graph_memory>, failure> pool_captures::find(stream_key const& key, std::size_t bytes) noexcept {
  sync::lock const lock{mutex_};
  if (!scopes_.empty()) {
    auto const mine = capture_of(key);
    for (auto* each = scopes_.first(); each; each = each->links_.next) {
      if (!(each->key_ == key)) continue;
      if (mine.is_active()) return each->memory_;
      return unexpected<failure>{failure{outcome::driver_error, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, bytes}};
    }
    for (auto* each = scopes_.first(); each && mine.is_active(); each = each->links_.next) {
      auto const other = capture_of(each->key_);
      if (other.is_active() && other.id == mine.id) return each->memory_;
    }
  }
  return unexpected<failure>{failure{outcome::capture_unsupported, 0, bytes}};
}

void pool_captures::begin_scope(open_capture& capture) {
  sync::lock const lock{mutex_};
  for (auto* each = scopes_.first(); each; each = each->links_.next) {
    if (each->key_ == capture.key_)
      throw std::invalid_argument{"gpumem: the stream already has a capture scope of this pool"};
  }
  scopes_.push_back(capture);
}

void pool_captures::end_scope(open_capture& capture) noexcept {
  sync::lock const lock{mutex_};
  scopes_.remove(capture);
}

open_capture::open_capture(pool_captures& captures, void const* pool, graph_memory& memory, stream_ref stream,
                           std::optional<device> device)
    : memory_{&memory}, captures_{captures}, key_{identify_for_capture(stream, device)} {
  if (!memory.upstream().is(pool))
    throw std::invalid_argument{"gpumem: the upstream of a capture scope's graph memory must be the pool itself"};
  // In the capture no event can be recorded, and chunks of the memory need blocks whose uses are complete.
  if (!is_capturing(key_.identity().handle())) key_.identity().timeline().cover(key_.identity().handle());
  captures_.memories().add(memory);
  key_.identity().timeline().add_keeper(); // as long as the list has the key
  try {
    captures_.begin_scope(*this);
  } catch (...) {
    key_.identity().timeline().remove_keeper();
    throw;
  }
  timeline_registry::instance().begin_asking();
}

// Does nothing in a forked child: the threads that hold the locks may not exist there.
open_capture::~open_capture() {
  if (forked()) return;
  timeline_registry::instance().end_asking();
  captures_.end_scope(*this);
  key_.identity().timeline().remove_keeper();
}

} // namespace gpumem::detail
