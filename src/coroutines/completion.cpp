// Asking the driver, arming, and the end of a wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <mutex>
#include <utility>
module gpumem:completion.impl;
import :completion;
import :cuda;
import :device;
import :driver;
import :error;
import :event;
import :fork;
import :lane;
import :reactor;
import :stream;
import :suspension;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

// The stream's identity, unless it captures: asking a capturing stream anything would spoil the capture.
stream_key identify_idle(stream_ref stream) {
  auto const key = identify(stream);
  check(loss_of(key.order().device()), "gpumem: waiting for the device");
  bool const captures = key.capturing() || is_capturing(key.handle()) ||
                        (key.order().kind() == stream_kind::null && is_capturing(CU_STREAM_PER_THREAD));
  if (captures) throw acquire_error{failure{outcome::capture_unsupported}};
  return key;
}

// Handle 0 is one of two streams: both are asked.
CUresult query(stream_key const& key) {
  if (key.order().kind() != stream_kind::null) return driver().stream_query(key.handle());
  auto const own = driver().stream_query(CU_STREAM_PER_THREAD);
  return own == CUDA_SUCCESS ? driver().stream_query(CU_STREAM_LEGACY) : own;
}

void require_driver() {
  if (!driver_alive()) check(CUDA_ERROR_DEINITIALIZED, "gpumem: waiting for the device");
}

} // namespace

bool completion_target::poll() const {
  require_driver();
  relaxed_capture const relaxed;
  if (event_) return event_->is_done();
  auto const key = identify_idle(stream_);
  auto& order = key.order();
  auto const covers = order.close_epoch(); // before the question: what it answers for was enqueued by then
  auto const result = judge(order.device(), query(key));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuStreamQuery");
  order.publish_completed(covers);
  return true;
}

void completion_target::wait() const {
  require_driver();
  relaxed_capture const relaxed;
  if (event_) return event_->synchronize();
  check(identify_idle(stream_).wait_on_host(), "cuStreamSynchronize");
}

lane& completion_target::place() const {
  if (event_) {
    auto const where = point_of(*event_);
    return reactor::of(device{where.device}).lane_of(where.event);
  }
  auto& order = identify(stream_).order();
  return reactor::of(device{order.device()}).lane_of(order);
}

stream_point completion_target::mark(pooled_event*& recorded) const {
  if (event_) return point_of(*event_);
  relaxed_capture const relaxed;
  auto const key = identify_idle(stream_);
  auto& order = key.order();
  auto* const event = take_event(order.context());
  auto const covers = order.close_epoch();
  auto const result = judge(order.device(), driver().event_record(event->handle, order.recorded_on(key.handle())));
  if (result != CUDA_SUCCESS) give_event(event);
  check(result, "cuEventRecord");
  recorded = event;
  order.hold();
  return {event->handle, &order, covers, order.device()};
}

void completion_wait::prepare() {
  suspension::prepare();
  lane_ = &target_.place();
  lane_->home().start();
}

bool completion_wait::arm() {
  sync::lock const in_order{lane_->order()};
  where_ = target_.mark(recorded_);
  handed_over_ = true;
  auto const answer = lane_->home().arm(*this);
  if (answer == reactor::answer::armed) return true;
  handed_over_ = false;
  if (answer == reactor::answer::stopped) {
    end(ending::stopped, CUDA_SUCCESS);
  } else {
    end(ending::refused, CUDA_ERROR_DEINITIALIZED);
  }
  return false;
}

void completion_wait::stop() noexcept {
  if (forked()) return;
  stop_requested_.store(true, std::memory_order_release);
  if (!lane_->home().disarm(*this)) return; // over, or not armed yet: arm() looks
  end(ending::stopped, CUDA_SUCCESS);
  post();
}

void completion_wait::reached(CUresult result) noexcept {
  end(result == CUDA_SUCCESS ? ending::complete : ending::refused, result);
  post();
}

void completion_wait::end(ending how, CUresult result) noexcept {
  outcome_ = how;
  result_ = result;
  give_back();
}

// The timeline of a stream that dies meanwhile serves no other stream before this: the order of a lane is one stream's.
void completion_wait::give_back() noexcept {
  auto* const event = std::exchange(recorded_, nullptr);
  if (!event) return;
  give_event(event);
  where_.order->drop();
}

void completion_wait::finish() {
  handed_over_ = false;
  if (outcome_ == ending::stopped) throw acquire_error{failure{outcome::stopped}};
  if (outcome_ == ending::refused) check(result_, "gpumem: waiting for the device");
}

bool completion_wait::finish_stopped() noexcept {
  if (!stopped()) return false;
  handed_over_ = false;
  return true;
}

void completion_wait::abandon() noexcept {
  if (forked()) return;
  if (handed_over_ && !lane_->home().disarm(*this)) take_back();
  give_back();
}

} // namespace gpumem::detail
