// Requests in progress: how they try to allocate, park, are answered and are cancelled.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
module gpumem:acquire.impl;
import :acquire;
import :allocation;
import :cuda;
import :device;
import :error;
import :labels;
import :process;
import :services;
import :stream;
import :stream_timeline;
import :sync;
import :timer;
import :waiter;

namespace gpumem::detail {

void set_label(services_handle const& services, void const* pointer, char const* label) noexcept try {
  if (services.table->set_label) services.table->set_label(services.state, pointer, label_number(label));
} catch (...) {} // the block stays unnamed

request_operation::request_operation(request const& request, expected<stream_key, failure> const& key,
                                     std::span<request_part> more) noexcept
    : waiter{key ? *key : stream_key::host(), request.bytes, request.options.alignment, request.options.priority, more},
      services_{request.from}, deadline_{request.options.deadline}, label_{request.options.label} {
  if (request.asks_for_turn) ask_for_turn();
  if (bytes() == 0) {
    complete(nullptr);
  } else if (!key) {
    complete(unexpected<failure>{key.error()});
  }
}

bool request_operation::try_now(bool may_wait, queueing place_in_queue) noexcept {
  if (is_complete()) return true;
  if (asks_for_turn()) {
    if (can_wait()) return false;
    complete(nullptr);
    return true;
  }
  bool const ends = place_in_queue == queueing::behind && captures(); // a capture cannot wait
  auto const place = ends ? queueing::once : place_in_queue;
  auto const result = has_parts() ? try_parts(may_wait, place) : try_part(part(0), may_wait, place);
  if (!result && result.error().reason == outcome::exhausted && can_wait()) return false;
  complete(result);
  return true;
}

[[gnu::always_inline]] inline expected<void*, failure>
request_operation::try_part(request_part const& part, bool may_wait, queueing queueing) noexcept {
  auto const key = part.stream.with_waiting(may_wait).queueing_as(queueing);
  expected<void*, failure> checked = nullptr;
  try {
    // `true` accepts a capturing stream: the resource decides about it.
    checked = checked_request(key, device_of(services_), part.bytes, part.alignment, true);
  } catch (...) { checked = unexpected<failure>{current_failure(part.bytes)}; }
  if (!checked) return checked;
  return services_.table->try_allocate_keyed(services_.state, &key, part.bytes, part.alignment);
}

expected<void*, failure> request_operation::try_parts(bool may_wait, queueing queueing) noexcept {
  return allocate_parts([&](request_part const& one) { return try_part(one, may_wait, queueing); },
                        [this](request_part const& one) {
                          services_.table->deallocate_keyed(services_.state, &one.stream, one.pointer, one.bytes,
                                                            one.alignment);
                        });
}

bool request_operation::captures() noexcept {
  bool captures = false;
  for (std::size_t i = 0; i < parts(); ++i) captures = captures || part(i).stream.identity().capturing();
  return captures;
}

// A capture cannot wait: the work that frees the memory may run only after the capture has ended.
bool request_operation::park() noexcept {
  if (captures()) {
    complete(unexpected<failure>{failure{refusal(), 0, bytes()}});
    return false;
  }
  auto const from = services_;
  parked_ = true;
  if (from.table->admit(from.state, static_cast<waiter*>(this))) return true;
  parked_ = false;
  if (!is_complete()) complete(unexpected<failure>{failure{refusal(), 0, bytes()}});
  return false;
}

bool request_operation::cancel_waiter() noexcept {
  return services_.table->cancel_waiter && services_.table->cancel_waiter(services_.state, static_cast<waiter*>(this));
}

void request_operation::cancel(outcome reason) noexcept {
  if (forked() || !set_cancelled(reason)) return;
  if (!cancel_waiter()) return;
  clear_hooks(); // so refuse() calls no adaptors: cancel_waiter() has told them of the end
  cancelled_ = true;
  refuse(failure{reason, 0, bytes()});
}

void request_operation::note_late(sync::time_point deadline) noexcept {
  if (sync::now() >= deadline) set_cancelled(outcome::deadline);
}

// Asks the resource again, in a turn of the request. If the stream is capturing or destroyed by now, ends the request
// with outcome::capture_unsupported: for a stream whose handle gpumem does not own, it cannot tell these two apart. On
// another thread the handle of a per-thread default stream means another stream, so the request goes on without the
// handle.
bool request_operation::park_again() noexcept {
  clear_hooks();
  bool usable = true;
  for (std::size_t i = 0; i < parts() && !asks_for_turn(); ++i) {
    auto const before = part(i).stream;
    auto const now = stream_key::at_end_of(before.identity().timeline(), before.identity().handle());
    part(i).stream = now;
    auto const& timeline = before.identity().timeline();
    bool const unknown =
        timeline.kind() == stream_kind::foreign && before.identity().has_handle() && !now.identity().has_handle();
    usable = usable && !now.identity().capturing() && !(unknown && !device{timeline.device()}.lost());
  }
  if (usable) return park();
  end_turn();
  complete(unexpected<failure>{failure{outcome::capture_unsupported, 0, bytes()}});
  return false;
}

// Makes the resource forget the request, even if the request has its turn.
void request_operation::end_turn() noexcept {
  set_being_destroyed();
  cancel_waiter();
}

expected<allocation, failure> request_operation::take() noexcept {
  auto const result = take_result();
  parked_ = false;
  if (!result) return unexpected<failure>{result.error()};
  if (label_ && *result) set_label(services_, *result, label_);
  return allocation{services_, stream(), *result, *result ? bytes() : 0, alignment()};
}

std::optional<failure> request_operation::take_into(std::span<allocation> places) noexcept {
  auto const result = take_result();
  parked_ = false;
  if (!result) return result.error();
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto const& one = part(i);
    if (label_ && one.pointer) set_label(services_, one.pointer, label_);
    places[i] = allocation{services_, one.stream, one.pointer, one.pointer ? one.bytes : 0, one.alignment};
  }
  return std::nullopt;
}

void request_operation::take_into_or_throw(std::span<allocation> places) {
  if (auto const why = take_into(places)) throw_failure_of(services_, stream().identity().handle(), *why);
}

void request_operation::return_memory() noexcept {
  auto const result = take_result();
  parked_ = false;
  for (std::size_t i = 0; result && i < parts(); ++i) {
    auto const& one = part(i);
    allocation{services_, one.stream, one.pointer, one.bytes, one.alignment}.reset();
  }
}

bool request_operation::take_stopped() noexcept {
  if (!was_stopped()) return false;
  take_result();
  parked_ = false;
  return true;
}

allocation request_operation::take_or_throw() {
  auto result = take();
  if (result) return std::move(*result);
  throw_failure_of(services_, stream().identity().handle(), result.error());
}

// If the resource lets requests wait, the first attempt does not wait on the host. If it fails, the request waits in
// the resource.
void blocking_operation::wait() {
  if (!try_now(!can_wait())) wait_parked(deadline());
}

void blocking_operation::wait_until(sync::time_point time) noexcept {
  if (!try_now()) wait_parked(std::min(time, deadline()));
}

void blocking_operation::wait_parked(sync::time_point deadline) {
  note_late(deadline);
  if (!park()) return;
  do {
    sync::lock const lock{mutex_};
    while (!done_ && sync::now() < deadline) wake_.wait_until(mutex_, deadline);
    if (!done_) {
      sync::scoped_unlock const meanwhile{mutex_};
      cancel(outcome::deadline);
    }
    sleep(); // an answer that came before the cancellation counts
  } while (!answered());
}

// Waits until the request is decided or has a turn.
void blocking_operation::sleep() {
  while (!done_) wake_.wait(mutex_);
  done_ = false;
}

// Notifies under the lock: so the waiting thread cannot return and destroy the condition before this call has ended.
void blocking_operation::on_complete() noexcept {
  sync::lock const lock{mutex_};
  done_ = true;
  wake_.notify_one();
}

void suspended_operation::prepare() {
  suspension::prepare();
  if (deadline() < sync::time_point::max()) start_timer(*this, deadline());
}

bool suspended_operation::conclude() noexcept {
  if (is_complete()) return true;
  await_post();
  return answered();
}

// Frees granted memory and ends a turn. Reads the result only after take_back(), which waits until the thread that
// decides the request no longer touches this operation.
void suspended_operation::cancel_and_return() noexcept {
  if (forked()) return;
  if (parked() && (was_cancelled() || !cancel_waiter())) {
    take_back();
    if (!is_complete()) end_turn();
  }
  if (is_complete()) return_memory();
}

void blocking_operation::only_now() noexcept {
  if (!try_now(false, queueing::once)) complete(unexpected<failure>{failure{outcome::exhausted, 0, bytes()}});
}

expected<allocation, failure> blocking_operation::allocate() noexcept {
  if (!try_now(true, queueing::none)) return unexpected<failure>{failure{outcome::exhausted, 0, bytes()}};
  return take();
}

} // namespace gpumem::detail
