// The streams that gpumem makes, and the identification of all streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <utility>
module gpumem:stream.impl;
import :stream;
import :cuda;
import :device;
import :driver;
import :error;
import :process;
import :stream_timeline;
import :timeline_registry;

namespace gpumem {
namespace {

using detail::stream_kind;
using detail::stream_timeline;
using detail::timeline_registry;

std::atomic<default_stream> meaning{default_stream::either};

// Returns the stream that handle 0 means in this program; handle 0 if that is not known.
CUstream resolve_default(CUstream handle) noexcept {
  if (handle != nullptr) return handle;
  switch (meaning.load(std::memory_order_relaxed)) {
  case default_stream::legacy: return CU_STREAM_LEGACY;
  case default_stream::per_thread: return CU_STREAM_PER_THREAD;
  default: return nullptr;
  }
}

bool is_default(CUstream handle) noexcept {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

// The driver must not get the handle of a stream object that was moved from.
void refuse_moved_from(CUstream handle) {
  if (handle == detail::moved_from_handle()) throw detail::rule_error{broken_rule::moved_from_stream};
}

void require_current(device home) {
  if (device::current() != home) { throw detail::rule_error{broken_rule::other_device}; }
}

stream_timeline& foreign_timeline_of(CUstream handle, device device, bool capturing) {
  auto& all = timeline_registry::instance();
  if (!is_default(handle)) return capturing ? all.of_capturing(handle, device) : all.of_handle(handle);
  auto const kind = handle == nullptr            ? stream_kind::null
                    : handle == CU_STREAM_LEGACY ? stream_kind::legacy
                                                 : stream_kind::per_thread;
  return all.of_default(kind, device, handle, capturing);
}

// Returns whether a default stream captures, or another stream's capture forbids calls on it. Returns true on an error
// too.
bool captures_default(stream_timeline const& timeline, CUstream handle) noexcept {
  try {
    device_guard const scope{device{timeline.device()}};
    return detail::is_capturing(handle);
  } catch (...) { return true; }
}

// Returns whether a stream that gpumem made or adopted captures. In a capture scope asks the driver, which also knows
// captures that gpumem did not begin. Otherwise gpumem's own record is enough. Returns true on an error too.
bool captures_owned(stream_timeline const& timeline, CUstream handle) noexcept {
  if (!detail::owned_handles_hidden.load(std::memory_order_relaxed)) return timeline.capturing();
  try {
    return detail::is_capturing(handle);
  } catch (...) { return true; }
}

// The capture in which a stream takes part, as the driver reports it. The id of an invalidated capture is not known.
struct capture_seen {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
};

// An error counts as no capture.
capture_seen capture_of(CUstream handle) noexcept {
  capture_seen seen;
  auto const asked =
      driver().stream_get_capture_info(handle, &seen.status, &seen.id, nullptr, nullptr, nullptr, nullptr);
  return asked == CUDA_SUCCESS ? seen : capture_seen{};
}

// Waits for a stream, unless it captures: a wait would end the capture.
CUresult wait_outside_capture(CUstream handle) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto const asked = driver().stream_is_capturing(handle, &status); asked != CUDA_SUCCESS) return asked;
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return driver().stream_synchronize(handle);
}

} // namespace

void set_default_stream(default_stream means) noexcept { meaning.store(means, std::memory_order_relaxed); }

stream_key stream_key::host() noexcept { return {timeline_registry::instance().host(), nullptr, false, false}; }

stream_key stream_key::by_identity() const noexcept {
  auto& timeline = identity_.timeline();
  bool const lives = timeline.owns_handle();
  return {timeline, lives ? timeline.handle() : identity_.handle(), lives, timeline.capturing()};
}

stream_key stream_key::ask_driver() const noexcept {
  auto const& timeline = identity_.timeline();
  auto key = *this;
  key.identity_.capturing_ = detail::lost_error_of(timeline.device()) == CUDA_SUCCESS &&
                             timeline.captures(identity_.handle()) &&
                             detail::lost_error_of(timeline.device()) == CUDA_SUCCESS;
  return key;
}

stream_key stream_key::at_end_of_other(detail::stream_timeline& timeline, CUstream handle) noexcept {
  if (detail::lost_error_of(timeline.device()) != CUDA_SUCCESS) return {timeline, handle, false, false};
  switch (timeline.kind()) {
  case stream_kind::own:
  case stream_kind::adopted: return {timeline, handle, true, captures_owned(timeline, handle)};
  case stream_kind::foreign: return {timeline, handle, detail::find_seen_timeline(handle) == &timeline, false};
  case stream_kind::per_thread:
  case stream_kind::null: {
    bool const usable = timeline_registry::is_own_default(timeline);
    return {timeline, handle, usable, usable && captures_default(timeline, handle)};
  }
  case stream_kind::legacy: return {timeline, handle, true, captures_default(timeline, handle)};
  default: return {timeline, handle, false, timeline.capturing()};
  }
}

detail::stream_timeline* detail::find_seen_timeline(CUstream handle) noexcept try {
  if (is_default(handle) || !driver_alive()) return nullptr;
  auto const& ask = driver();
  auto* known_handle = seen_handles.find(handle);
  if (!known_handle) known_handle = timeline_registry::instance().find_beyond_table(handle);
  if (!known_handle) return nullptr;
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  bool const known = ask.stream_is_capturing(handle, &status) == CUDA_SUCCESS;
  if (!known || status != CU_STREAM_CAPTURE_STATUS_NONE) return nullptr; // to ask for the id would end the capture
  unsigned long long id = 0;
  bool const sure = known_handle->owns_handle(); // no other stream gets the handle of one that lives
  if (!sure && (ask.stream_get_id(handle, &id) != CUDA_SUCCESS || known_handle->id() != id)) return nullptr;
  if (known_handle->cover_request().raised()) [[unlikely]]
    known_handle->record_requested(handle);
  return known_handle;
} catch (...) { // there is no driver
  return nullptr;
}

stream_key detail::wait_without_identity(CUstream handle) noexcept {
  detail::relaxed_capture const relaxed;
  auto result = CUDA_SUCCESS;
  if (handle == nullptr) result = wait_outside_capture(CU_STREAM_PER_THREAD);
  if (result == CUDA_SUCCESS) result = wait_outside_capture(handle ? handle : CU_STREAM_LEGACY);
  if (result == CUDA_SUCCESS) return stream_key::host();
  static stream_timeline never{stream_kind::foreign, ~std::uint32_t{0}, 0, -1, nullptr, nullptr, nullptr};
  return {never, handle, false, false};
}

bool detail::is_capturing(CUstream handle) {
  auto const* const seen = seen_handles.find(handle); // also while a capture scope hides own and adopted streams
  auto const* const known = seen && seen->owns_handle() ? seen : nullptr;
  if (known) check(lost_error_of(known->device()), "cuStreamIsCapturing");
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const result = driver().stream_is_capturing(handle, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true; // another stream's capture forbids even this query
  check(known ? interpret(known->device(), result) : result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

stream_key extend::identify(stream_ref stream, device device) {
  auto const handle = resolve_default(stream.get());
  if (auto* const timeline = detail::find_owned_timeline(handle)) return stream_key::of(*timeline, handle);
  refuse_moved_from(handle);
  if (is_default(handle)) require_current(device);
  bool const capturing = detail::is_capturing(handle); // asked first, since to ask for the id would end a capture
  auto& timeline = foreign_timeline_of(handle, device, capturing);
  if (timeline.cover_request().raised() && !capturing) [[unlikely]]
    timeline.record_requested(handle);
  return {timeline, handle, true, capturing};
}

stream_key extend::identify(stream_ref stream) {
  auto const handle = stream.get();
  if (auto* const timeline = detail::find_owned_timeline(handle)) return stream_key::of(*timeline, handle);
  return identify(stream, device::current());
}

// Handle 0 means the legacy or the per-thread stream, depending on how the caller was compiled. So the function waits
// for both streams.
CUresult identified_stream::wait_on_host() const noexcept {
  if (is_host()) return CUDA_SUCCESS;
  if (!has_handle_ && timeline_->is_mortal()) return CUDA_ERROR_NOT_READY;
  if (auto const loss = detail::lost_error_of(timeline_->device()); loss != CUDA_SUCCESS) return loss;
  auto const new_epoch = timeline_->epochs().advance();
  auto result = CUDA_SUCCESS;
  {
    detail::context_guard const here{timeline_->context()};
    if (here.result() != CUDA_SUCCESS) return here.result();
    detail::relaxed_capture const relaxed;
    bool const both = timeline_->kind() == stream_kind::null;
    if (both) result = wait_outside_capture(CU_STREAM_PER_THREAD);
    if (result == CUDA_SUCCESS) result = wait_outside_capture(both ? CU_STREAM_LEGACY : handle_);
  }
  if (result == CUDA_SUCCESS) timeline_->epochs().publish_completed(new_epoch);
  return detail::interpret(timeline_->device(), result);
}

void cover_frees(stream_ref stream) {
  detail::throw_if_child();
  auto const key = identify(stream);
  auto& timeline = key.identity().timeline();
  if (!timeline.is_mortal() || timeline.epochs().uncovered_frees() == 0) return;
  if (key.identity().capturing()) throw_failure({outcome::capture_unsupported, 0, 0});
  if (timeline.record_requested(key.identity().handle())) return;
  check(detail::lost_error_of(timeline.device()), "cuEventRecord");
  throw_failure({outcome::capture_unsupported, 0, 0}); // another thread has begun a capture meanwhile
}

stream::stream(detail::stream_timeline& timeline, bool owned) noexcept
    : stream_ref{timeline.handle()}, timeline_{&timeline}, owned_{owned} {}

stream::stream(gpumem::device device, int priority)
    : stream{timeline_registry::instance().take_own(device, priority), true} {
  timeline_->prepare();
}

stream::stream(stream&& other) noexcept
    : stream_ref{std::exchange<stream_ref>(other, stream_ref{detail::moved_from_handle()})},
      timeline_{std::exchange(other.timeline_, nullptr)}, capture_{std::exchange(other.capture_, 0)},
      owned_{other.owned_} {}

stream& stream::operator=(stream&& other) noexcept {
  if (this == &other) return *this;
  retire();
  stream_ref::operator=(std::exchange<stream_ref>(other, stream_ref{detail::moved_from_handle()}));
  timeline_ = std::exchange(other.timeline_, nullptr);
  capture_ = std::exchange(other.capture_, 0);
  owned_ = other.owned_;
  return *this;
}

stream::~stream() { retire(); }

// Records an event that covers all frees on the stream, since no later call may use the handle.
void stream::retire() noexcept {
  if (!timeline_ || detail::forked()) return;
  auto& timeline = *std::exchange(timeline_, nullptr);
  if (owned_ && capture_ != 0) end_own_capture();
  timeline.record_later(timeline.handle());
  if (owned_) return timeline_registry::instance().return_own(timeline);
  timeline.record_requested(timeline.handle());
  timeline_registry::instance().adopt(timeline, false);
}

// Only the thread that began a capture in another mode than `relaxed` may end it. If the driver refuses, the stream
// goes on capturing, and take_own() does not give it out.
void stream::end_own_capture() noexcept {
  if (!driver_alive()) return;
  auto const seen = capture_of(get());
  bool const is_own = seen.status == CU_STREAM_CAPTURE_STATUS_ACTIVE && seen.id == capture_;
  CUgraph graph = nullptr;
  if (!is_own && seen.status != CU_STREAM_CAPTURE_STATUS_INVALIDATED) return; // ended, or joined to another capture
  if (driver().stream_end_capture(get(), &graph) == CUDA_SUCCESS) driver().graph_destroy(graph);
}

stream stream::adopt(CUstream handle) {
  refuse_moved_from(handle);
  if (is_default(handle)) throw std::invalid_argument{"gpumem: a default stream cannot be adopted"};
  if (detail::is_capturing(handle)) throw_failure({outcome::capture_unsupported, 0, 0});
  auto& timeline = timeline_registry::instance().of_handle(handle);
  timeline.prepare();
  timeline_registry::instance().adopt(timeline, true);
  return stream{timeline, false};
}

// Throws after a move from this object.
detail::stream_timeline& stream::timeline() const {
  if (!timeline_) detail::throw_moved_from("stream");
  return *timeline_;
}

gpumem::device stream::device() const { return gpumem::device{timeline().device()}; }

stream_key stream::key() const { return {timeline(), get(), true, captures_owned(timeline(), get())}; }

void stream::synchronize() {
  device().throw_if_lost();
  auto const seen = timeline().epochs().advance();
  detail::relaxed_capture const relaxed;
  check(device().interpret(wait_outside_capture(get())), "cuStreamSynchronize");
  timeline().epochs().publish_completed(seen);
}

void stream::begin_capture(CUstreamCaptureMode mode) {
  device().throw_if_lost();
  check(device().interpret(driver().stream_begin_capture(get(), mode)), "cuStreamBeginCapture");
  timeline().set_capturing(true);
  capture_ = capture_of(get()).id;
}

CUgraph stream::end_capture() {
  CUgraph graph = nullptr;
  timeline().set_capturing(false);
  capture_ = 0;
  check(driver().stream_end_capture(get(), &graph), "cuStreamEndCapture");
  return graph;
}

} // namespace gpumem
