// Records and polls events of streams, and notes after which epochs of other streams a stream is ordered.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:stream_timeline.impl;
import :stream_timeline;
import :backoff;
import :cuda;
import :device;
import :driver;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {

epoch vector_clock::at(std::uint32_t index) const noexcept {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  return found != entries_.end() && found->index == index ? found->newest : 0;
}

void vector_clock::raise(std::uint32_t index, epoch newest) {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  if (found != entries_.end() && found->index == index) {
    found->newest = std::max(found->newest, newest);
  } else {
    entries_.insert(found, {index, newest});
  }
}

void vector_clock::join(vector_clock const& other) {
  for (auto const& e : other.entries_) raise(e.index, e.newest);
}

bool stream_order::is_after(std::uint32_t index, epoch e) const {
  sync::lock const lock{mutex_};
  return clock_.at(index) >= e;
}

void stream_order::add(std::uint32_t index, epoch e, vector_clock const& order) {
  sync::lock const lock{mutex_};
  clock_.join(order);
  clock_.raise(index, e);
}

vector_clock stream_order::snapshot() const {
  sync::lock const lock{mutex_};
  return clock_;
}

void stream_order::clear() noexcept {
  sync::lock const lock{mutex_};
  clock_ = {};
}

stream_timeline::stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                                 CUstream handle, pooled_event* last)
    : stream_identity{kind, index, id, device, context, handle}, prepared_{kind == stream_kind::host},
      may_die_{last != nullptr}, epochs_{kind == stream_kind::host ? ~epoch{0} : 0}, ring_{*this, epochs_},
      last_{*this, epochs_, last} {}

void stream_timeline::adopt(bool promised) noexcept {
  if (kind() == stream_kind::own) return;
  sync::lock const lock{events_mutex_}; // so no thread uses the handle in record() while the promise ends
  change_promises(promised);
}

bool stream_timeline::ordered_after(stream_timeline const& other, epoch e) const {
  return this == &other || order_.is_after(other.index(), e);
}

epoch stream_timeline::record(CUstream handle, bool precise, bool promised) noexcept {
  if (kind() == stream_kind::host || !is_usable()) return 0;
  relaxed_capture const relaxed;
  sync::lock const lock{events_mutex_};
  if (promised && !owns_handle()) return 0;
  auto const covers = ring_.record(handle, precise, event_request_, last_.open_epoch());
  if (!ring_.has_spare()) prepared_.store(false, std::memory_order_relaxed);
  return covers;
}

bool stream_timeline::waitable(epoch e) const noexcept {
  sync::lock const lock{events_mutex_};
  return ring_.find_waitable(e) != nullptr;
}

bool stream_timeline::has_event() const noexcept {
  sync::lock const lock{events_mutex_};
  return ring_.open_since() || last_.open_since();
}

std::optional<sync::time_point> stream_timeline::poll() noexcept {
  if (!is_usable()) return std::nullopt;
  if (!events_mutex_.try_lock()) return std::nullopt;
  sync::lock const lock{events_mutex_, std::adopt_lock};
  auto const open_epoch = ring_.open_since();
  if ((!open_epoch && !last_.open_since()) || was_reset()) return std::nullopt;
  relaxed_capture const relaxed;
  // A recent event says nothing about the stream's work: even a stream without work takes 2 us to complete one.
  auto const long_ago = sync::now() - tuning::behind_after;
  bool const tells = open_epoch && *open_epoch < long_ago;
  ring_.retire_completed(last_.open_epoch());
  last_.poll(ring_.newest());
  auto const in_ring = ring_.open_since();
  auto const since = in_ring ? in_ring : last_.open_since();
  if (tells || !since) behind_.store(in_ring && *in_ring < long_ago, std::memory_order_relaxed);
  return since;
}

// Returns false if the waiting stream is known only by handle 0 (kind null): the driver would make the legacy stream
// wait, which is a barrier between all blocking streams.
bool stream_timeline::insert_wait(stream_timeline& waiting_timeline, CUstream caller_handle, epoch e) noexcept {
  if (waiting_timeline.kind() == stream_kind::null || !is_usable() || !waiting_timeline.is_usable()) return false;
  {
    sync::lock const lock{events_mutex_};
    auto* const event = ring_.find_waitable(e);
    if (!event) return false;
    relaxed_capture const relaxed;
    if (waiting_timeline.captures(caller_handle))
      return false; // the wait would end a capture that was begun on the handle
    if (driver().stream_wait_event(caller_handle, event, 0) != CUDA_SUCCESS) return false;
  }
  try {
    waiting_timeline.order_.add(index(), e, {});
  } catch (...) {
    return false; // the driver has the wait; only the note of the order is lost
  }
  return true;
}

bool stream_timeline::wait(epoch e) noexcept {
  for (backoff pause{tuning::max_pass_pause};;) {
    if (newest_recorded() < e) cover(std::nullopt);
    poll();
    if (completed(e)) return true;
    if (!is_usable() || !can_complete(e)) return false;
    sync::sleep_for(pause.next());
  }
}

namespace {

// Asks the driver whether the legacy stream is idle. If so, publishes that all its work so far is complete. Asks
// nothing while a blocking stream captures, since the question would end the capture. A capture that another thread
// begins at the same moment is not seen.
void query_legacy(stream_timeline& legacy) noexcept {
  if (!legacy.is_usable()) return;
  relaxed_capture const relaxed;
  auto const covers = legacy.epochs().advance();
  context_guard const here{legacy.context()};
  // To ask whether the stream captures does not end a capture; to ask whether it is idle does.
  bool const idle = here.result() == CUDA_SUCCESS && !legacy.captures(CU_STREAM_LEGACY) &&
                    driver().stream_query(CU_STREAM_LEGACY) == CUDA_SUCCESS;
  if (idle) legacy.epochs().publish_completed(covers);
}

} // namespace

void note_uncovered_memory(uncovered_memory memory, bool much) noexcept {
  auto const bit = static_cast<std::uint8_t>(memory);
  if (much) {
    uncovered_memory_seen.fetch_or(bit, std::memory_order_relaxed);
  } else {
    uncovered_memory_seen.fetch_and(static_cast<std::uint8_t>(~bit), std::memory_order_relaxed);
  }
}

epoch stream_timeline::end_use_with_event(epoch e, std::optional<CUstream> caller_handle, std::size_t bytes) noexcept {
  if (auto const covers = final_epoch_.load(std::memory_order_acquire)) return covers;
  epochs_.count_uncovered(bytes);
  if (!caller_handle || !is_usable()) return e;
  sync::lock const lock{events_mutex_};
  auto const recorded = last_.record(*caller_handle, ring_.newest());
  return recorded ? recorded : e;
}

epoch stream_timeline::end_use_in_capture() noexcept {
  if (auto const covers = final_epoch_.load(std::memory_order_acquire)) return covers;
  auto const e = epochs_.current();
  captured_use_.store(e, std::memory_order_relaxed);
  cover_request_.raise();
  return e;
}

void stream_timeline::enter_capture(std::uint64_t capture) noexcept {
  auto const before = std::exchange(capture_, capture);
  auto const owed = owed_.load(std::memory_order_relaxed);
  if (before == 0 || before == capture || !is_mortal() || epochs_.uncovered_frees() > 0) return;
  if (newest_recorded() < owed && !completed(owed)) return;
  poll();
  if (!has_event()) epochs_.publish_completed(epochs_.advance());
}

void stream_timeline::end() noexcept {
  dead_.store(true, std::memory_order_relaxed);
  if (epochs_.uncovered_frees() > 0 || final_epoch_.load(std::memory_order_relaxed) != 0) return;
  poll();
  if (has_event()) return;
  auto const last = epochs_.advance();
  epochs_.publish_completed(last);
  final_epoch_.store(last, std::memory_order_release);
}

bool stream_timeline::record_last_event(CUstream caller_handle, bool final) noexcept {
  if (!is_usable()) return false;
  context_guard const here{context()};
  if (here.result() != CUDA_SUCCESS) return false;
  sync::lock const lock{events_mutex_};
  auto const covers = last_.record(caller_handle, ring_.newest());
  if (covers && final) {
    final_epoch_.store(covers, std::memory_order_release);
    epochs_.forbid_silent();
  }
  return covers != 0;
}

bool stream_timeline::record_requested(CUstream caller_handle) noexcept {
  cover_request_.drop(); // a request from here on means later frees
  if (!record_last_event(caller_handle, false)) {
    if (is_usable()) cover_request_.raise(); // for the next call that gets the handle
    return false;
  }
  if (auto* const tell = on_requested_recorded.load(std::memory_order_acquire)) tell();
  return true;
}

void stream_timeline::cover(std::optional<CUstream> caller_handle) noexcept {
  if (owns_handle()) {
    record(handle(), false, true);
  } else if (caller_handle) {
    if (!record_later(*caller_handle) && is_mortal()) record_last_event(*caller_handle, false);
  } else if (kind() == stream_kind::legacy) {
    query_legacy(*this);
  } else {
    event_request_.raise();
  }
}

bool stream_timeline::is_reusable() noexcept {
  if (epochs_.uncovered_frees() > 0 || keepers_.load(std::memory_order_acquire) > 0) return false;
  poll();
  return !has_event() && epochs_.uncovered_frees() == 0;
}

// Gives the timeline to a new stream. Memory can still be tagged with epochs of the earlier stream, and other streams
// can be noted as ordered after them. Both stay true, since these epochs are complete. The identity comes last: a call
// that sees the new id also sees the new values of all other members.
void stream_timeline::rebind(stream_kind kind, std::uint64_t id, CUstream handle) noexcept {
  order_.clear();
  epochs_.restart();
  event_request_.drop();
  cover_request_.drop();
  behind_.store(false, std::memory_order_relaxed);
  final_epoch_.store(0, std::memory_order_relaxed);
  capture_ = 0;
  dead_.store(false, std::memory_order_relaxed);
  reassign(kind, id, handle);
}

} // namespace gpumem::detail
