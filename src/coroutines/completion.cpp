// completion: queries the driver, adds waits to the reactor, and ends the waits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <utility>
module gpumem:completion.impl;
import :completion;
import :cuda;
import :device;
import :driver;
import :error;
import :event;
import :executor;
import :process;
import :reactor;
import :stream;
import :stream_timeline;
import :suspension;
import :sync;

namespace gpumem::detail {
namespace {

// Returns the key of the stream. Throws if the stream captures a graph, since a query or an event record would break
// the capture. Throws also if the device of the stream is lost.
stream_key identify_idle(stream_ref stream) {
  auto const key = identify(stream);
  check(lost_error_of(key.identity().timeline().device()), "gpumem: waiting for the device");
  bool const captures = key.identity().capturing() || is_capturing(key.identity().handle()) ||
                        (key.identity().timeline().kind() == stream_kind::null && is_capturing(CU_STREAM_PER_THREAD));
  if (captures) throw acquire_error{failure{outcome::capture_unsupported}};
  return key;
}

// Asks the driver whether the stream's work is complete. Handle 0 may mean the per-thread or the legacy stream, so both
// are queried.
CUresult query(stream_key const& key) {
  if (key.identity().timeline().kind() != stream_kind::null) return driver().stream_query(key.identity().handle());
  auto const result = driver().stream_query(CU_STREAM_PER_THREAD);
  return result == CUDA_SUCCESS ? driver().stream_query(CU_STREAM_LEGACY) : result;
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
  auto& timeline = key.identity().timeline();
  // The query must cover the work of the present epoch, so the epoch ends before the query.
  auto const covers = timeline.epochs().advance();
  auto const result = interpret(timeline.device(), query(key));
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, "cuStreamQuery");
  timeline.epochs().publish_completed(covers);
  return true;
}

void completion_target::wait() const {
  require_driver();
  relaxed_capture const relaxed;
  if (event_) return event_->synchronize();
  check(identify_idle(stream_).identity().wait_on_host(), "cuStreamSynchronize");
}

poll_queue& completion_target::queue(executor const& resumes) const {
  if (event_) {
    auto const where = point_of(*event_);
    return reactor::of(device{where.device}, resumes).queue_of(where.event);
  }
  auto& timeline = identify(stream_).identity().timeline();
  return reactor::of(device{timeline.device()}, resumes).queue_of(timeline);
}

stream_point completion_target::record_event(pooled_event*& recorded) const {
  if (event_) return point_of(*event_);
  relaxed_capture const relaxed;
  auto const key = identify_idle(stream_);
  auto& timeline = key.identity().timeline();
  auto* const event = take_event(timeline.context());
  auto const covers = timeline.epochs().advance();
  auto const result =
      interpret(timeline.device(), driver().event_record(event->handle, timeline.recorded_on(key.identity().handle())));
  if (result != CUDA_SUCCESS) give_event(event);
  check(result, "cuEventRecord");
  recorded = event;
  timeline.add_keeper();
  return {event->handle, &timeline, covers, timeline.device()};
}

void completion_wait::prepare() {
  suspension::prepare();
  queue_ = &target_.queue(resumes_on());
}

bool completion_wait::add_wait() {
  sync::lock const in_order{queue_->mutex};
  point_ = target_.record_event(recorded_);
  registered_ = true;
  auto const answer = queue_->home().add_wait(*this);
  if (answer == reactor::answer::armed) return true;
  registered_ = false;
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
  if (!queue_->home().remove_wait(*this)) return; // it has ended, or add_wait() will see the stop request
  end(ending::stopped, CUDA_SUCCESS);
  post();
}

void completion_wait::complete(CUresult result) noexcept {
  end(result == CUDA_SUCCESS ? ending::complete : ending::refused, result);
  post();
}

void completion_wait::end(ending ending, CUresult result) noexcept {
  outcome_ = ending;
  result_ = result;
  return_event();
}

// Returns the pooled event, and removes this wait from the keepers of the stream's timeline. A timeline with a keeper
// is not reused for a new stream, even if its own stream was destroyed. So all waits of a poll queue are for one
// stream.
void completion_wait::return_event() noexcept {
  auto* const event = std::exchange(recorded_, nullptr);
  if (!event) return;
  give_event(event);
  point_.timeline->remove_keeper();
}

void completion_wait::take_result() {
  registered_ = false;
  if (outcome_ == ending::stopped) throw acquire_error{failure{outcome::stopped}};
  if (outcome_ == ending::refused) check(result_, "gpumem: waiting for the device");
}

bool completion_wait::end_if_stopped() noexcept {
  if (!stopped()) return false;
  registered_ = false;
  return true;
}

void completion_wait::cancel_and_return() noexcept {
  if (forked()) return;
  if (registered_ && !queue_->home().remove_wait(*this)) take_back();
  return_event();
}

} // namespace gpumem::detail
