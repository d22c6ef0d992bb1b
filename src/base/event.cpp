// Events of the user. A wait of one stream for an event of another is noted as an order of the two streams, but only
// after the driver has accepted the wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <utility>
module gpumem:event.impl;
import :event;
import :cuda;
import :device;
import :driver;
import :error;
import :fork;
import :stream;
import :stream_timeline;

namespace gpumem {
namespace {

detail::pooled_event* event_for(device where) {
  where.require();
  return detail::take_event(where.context());
}

} // namespace

event::event(gpumem::device where) : event_{event_for(where)}, device_{where} {}

event::event(event&& other) noexcept
    : event_{std::exchange(other.event_, nullptr)}, device_{other.device_}, on_{std::exchange(other.on_, nullptr)},
      covers_{other.covers_}, before_{std::move(other.before_)}, in_capture_{other.in_capture_} {}

event& event::operator=(event&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(device_, other.device_);
  std::swap(on_, other.on_);
  std::swap(covers_, other.covers_);
  std::swap(before_, other.before_);
  std::swap(in_capture_, other.in_capture_);
  return *this;
}

// Throws after a move from this object.
detail::pooled_event& event::pooled() const {
  if (!event_) detail::throw_moved_from("event");
  return *event_;
}

event::~event() {
  if (event_ && !detail::forked()) detail::give_event(event_);
}

void event::record(stream_ref stream) {
  device_.throw_if_lost();
  auto const key = identify(stream, device_);
  auto& timeline = key.timeline();
  // Pools cannot derive an order of streams from two kinds of events: an event on the null or legacy stream, since it
  // also covers work of other streams, and a captured event, since it never runs.
  bool const captured = detail::is_capturing(key.handle());
  bool const tells =
      !captured && timeline.kind() != detail::stream_kind::null && timeline.kind() != detail::stream_kind::legacy;
  auto before = timeline.order().snapshot();
  auto const covers = timeline.epochs().advance();
  check(device_.interpret(driver().event_record(pooled().handle, key.handle())), "cuEventRecord");
  on_ = tells ? &timeline : nullptr;
  covers_ = covers;
  before_ = std::move(before);
  in_capture_ = captured;
}

void event::make_wait(stream_ref waiting) const {
  device_.throw_if_lost();
  auto const key = identify(waiting, device_);
  check(device_.interpret(driver().stream_wait_event(key.handle(), pooled().handle, 0)), "cuStreamWaitEvent");
  if (on_) key.timeline().order().add(on_->index(), covers_, before_);
}

// Throws if the event was recorded in a capture. The driver would refuse the call too, but would also end the capture.
void event::refuse_captured() const {
  if (in_capture_) throw acquire_error{failure{outcome::capture_unsupported}};
}

// Defined here and not in stream.cpp, because :event imports :stream.
void stream::wait(event const& happened) { happened.make_wait(*this); }

bool event::is_done() const {
  refuse_captured();
  device_.throw_if_lost();
  detail::relaxed_capture const relaxed;
  auto const result = device_.interpret(driver().event_query(pooled().handle));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuEventQuery");
  publish();
  return true;
}

void event::synchronize() const {
  refuse_captured();
  device_.throw_if_lost();
  detail::relaxed_capture const relaxed;
  check(device_.interpret(driver().event_synchronize(pooled().handle)), "cuEventSynchronize");
  publish();
}

void event::publish() const noexcept {
  if (on_) on_->epochs().publish_completed(covers_);
}

detail::stream_point detail::point_of(event const& of) {
  of.refuse_captured();
  return {of.pooled().handle, of.on_, of.covers_, of.device_.ordinal()};
}

} // namespace gpumem
