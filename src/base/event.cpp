// Events of the user. A wait of one stream for an event of another is noted as an order of the two streams, but only
// after the driver has accepted the wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <utility>
module gpumem:event.impl;
import :event;
import :cuda;
import :device;
import :driver;
import :error;
import :process;
import :stream;
import :stream_epochs;
import :stream_timeline;

namespace gpumem {
namespace {

// Returns whether work on the stream also waits for work of other streams.
bool spans_streams(detail::stream_timeline const& timeline) noexcept {
  return timeline.kind() == detail::stream_kind::null || timeline.kind() == detail::stream_kind::legacy;
}

[[noreturn]] void refuse() { throw acquire_error{failure{outcome::capture_unsupported}}; }

} // namespace

event::event(gpumem::device device) : device_{device} { device.require(); }

event::event(event&& other) noexcept
    : event_{other.event_.exchange(nullptr)}, valid_{std::exchange(other.valid_, false)}, device_{other.device_},
      timeline_{std::exchange(other.timeline_, nullptr)}, covers_{other.covers_},
      order_before_record_{std::move(other.order_before_record_)}, in_capture_{std::exchange(other.in_capture_, false)},
      capture_{other.capture_} {}

event& event::operator=(event&& other) noexcept {
  event_ = other.event_.exchange(event_);
  std::swap(valid_, other.valid_);
  std::swap(device_, other.device_);
  std::swap(timeline_, other.timeline_);
  std::swap(covers_, other.covers_);
  std::swap(order_before_record_, other.order_before_record_);
  std::swap(in_capture_, other.in_capture_);
  std::swap(capture_, other.capture_);
  return *this;
}

detail::pooled_event* event::pooled() const {
  if (!valid_) detail::throw_moved_from("event");
  return event_.load(std::memory_order_acquire);
}

event::~event() {
  auto* const used = event_.load(std::memory_order_relaxed);
  if (used && !detail::forked()) detail::give_event(used);
}

// A pooled event still has the record of an earlier owner, so it is not given out before record().
CUevent event::get() const {
  if (auto const known = handle()) return known;
  auto* const made = detail::make_unrecorded_event(device_.context());
  detail::pooled_event* first = nullptr;
  if (event_.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return made->handle;
  detail::give_event(made); // another thread was faster
  return first->handle;
}

void event::record(stream_ref stream) {
  device_.throw_if_lost();
  auto const key = identify(stream, device_);
  auto& timeline = key.identity().timeline();
  check(detail::lost_error_of(timeline.device()), "cuEventRecord");
  // Pools cannot derive an order of streams from two kinds of events: an event on the null or legacy stream, since it
  // also covers work of other streams, and a captured event, since it never runs.
  bool const captured = detail::is_capturing(key.identity().handle());
  if (captured && spans_streams(timeline)) refuse(); // the driver would end a capture of a blocking stream
  bool const tells = !captured && !spans_streams(timeline);
  auto order_at_record = timeline.order().snapshot();
  auto* const pooled_event = pooled();
  auto* const new_event = pooled_event ? pooled_event : detail::take_event(device_.context());
  auto const covers = timeline.epochs().advance();
  auto const result = device_.interpret(driver().event_record(new_event->handle, key.identity().handle()));
  if (result != CUDA_SUCCESS && !pooled_event) detail::give_event(new_event); // it has the record of an earlier owner
  check(result, "cuEventRecord");
  event_.store(new_event, std::memory_order_release);
  timeline_ = tells ? &timeline : nullptr;
  covers_ = covers;
  order_before_record_ = std::move(order_at_record);
  in_capture_ = captured;
  capture_ = captured ? detail::id_of_capture(key.identity().handle()) : 0;
}

void event::make_wait(stream_ref waiting_stream) const {
  device_.throw_if_lost();
  auto const key = identify(waiting_stream, device_);
  auto const recorded = handle();
  if (!recorded) return;
  check(detail::lost_error_of(key.identity().timeline().device()), "cuStreamWaitEvent");
  refuse_other_capture(key);
  check(device_.interpret(driver().stream_wait_event(key.identity().handle(), recorded, 0)), "cuStreamWaitEvent");
  if (timeline_) key.identity().timeline().order().add(timeline_->index(), covers_, order_before_record_);
}

// Throws if the event was recorded in a capture. The driver would refuse the call too, but would also end the capture.
void event::refuse_captured() const {
  if (in_capture_) refuse();
}

// Throws if the driver would refuse the wait of this stream and would end a capture: that of the stream or that in
// which the event was recorded.
void event::refuse_other_capture(stream_key const& waiting_key) const {
  bool const captures = detail::is_capturing(waiting_key.identity().handle()); // the timeline's own flag may be old
  if (captures && (!in_capture_ || detail::id_of_capture(waiting_key.identity().handle()) != capture_)) refuse();
  if (in_capture_ && spans_streams(waiting_key.identity().timeline())) refuse();
}

// Defined here and not in stream.cpp, because :event imports :stream.
void stream::wait(event const& event) { event.make_wait(*this); }

bool event::is_done() const {
  refuse_captured();
  device_.throw_if_lost();
  auto const recorded = handle();
  if (!recorded) return true;
  detail::relaxed_capture const relaxed;
  auto const result = device_.interpret(driver().event_query(recorded));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuEventQuery");
  publish();
  return true;
}

void event::synchronize() const {
  refuse_captured();
  device_.throw_if_lost();
  auto const recorded = handle();
  if (!recorded) return;
  detail::relaxed_capture const relaxed;
  check(device_.interpret(driver().event_synchronize(recorded)), "cuEventSynchronize");
  publish();
}

void event::publish() const noexcept {
  if (timeline_) timeline_->epochs().publish_completed(covers_);
}

detail::stream_point detail::point_of(event const& event) {
  event.refuse_captured();
  return {event.handle(), event.timeline_, event.covers_, event.device_.ordinal()};
}

} // namespace gpumem
