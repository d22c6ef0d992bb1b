// Timelines of mortal streams. Records the last event of a stream, and reuses the timeline of a dead stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
module gpumem:stream_timeline_mortal.impl;
import :stream_timeline;
import :cuda;
import :device;
import :driver;
import :last_event;
import :stream_epochs;
import :stream_identity;
import :sync;

namespace gpumem::detail {
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

void note_uncovered_memory(uncovered_memory of, bool much) noexcept {
  auto const bit = static_cast<std::uint8_t>(of);
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
  sync::lock const held{events_mutex_};
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
  sync::lock const held{events_mutex_};
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
  if (epochs_.uncovered_frees() > 0 || retained_.load(std::memory_order_acquire) > 0) return false;
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
