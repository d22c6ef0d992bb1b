// Timelines of mortal streams: the last event, the end of a stream, and the reuse for the next one.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
module gpumem:stream_timeline_mortal.impl;
import :backoff;
import :stream_timeline;
import :cuda;
import :device;
import :driver;
import :sync;
import :tuning;

namespace gpumem::detail {

CUstream stream_timeline::recorded_on(CUstream caller_handle) const noexcept {
  return kind() == stream_kind::null ? CU_STREAM_PER_THREAD : caller_handle;
}

epoch stream_timeline::end_use_with_event(epoch e, std::optional<CUstream> caller_handle, std::size_t bytes) noexcept {
  if (final_.load(std::memory_order_acquire)) return last_covers_;
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  uncovered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (!caller_handle || !driver_alive() || lost_error_of(device_) != CUDA_SUCCESS) return e;
  sync::lock const held{events_mutex_};
  auto const recorded = record_again(*caller_handle);
  return recorded ? recorded : e;
}

void stream_timeline::count_covered(std::uint32_t frees) noexcept {
  covered_frees_ = std::min(covered_frees_ + frees, tuning::covered_frees_per_silent * tuning::max_silent_frees);
  silent_frees_.store(covered_frees_ / tuning::covered_frees_per_silent, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
}

epoch stream_timeline::record_again(CUstream caller_handle) noexcept {
  auto const on = recorded_on(caller_handle);
  if (!last_event_ || captures(on)) return 0;
  auto const uncovered = uncovered_frees_.exchange(0, std::memory_order_relaxed);
  auto const covers = advance_epoch();
  auto const result = interpret(device_, driver().event_record(last_event_->handle, on));
  if (result != CUDA_SUCCESS) { // the event still covers what it covered before
    uncovered_frees_.fetch_add(uncovered, std::memory_order_relaxed);
    return 0;
  }
  if (captures(on)) { // another thread has begun a capture meanwhile
    uncovered_frees_.fetch_add(uncovered, std::memory_order_relaxed);
    lose_last_event();
    return 0;
  }
  last_open_ = true;
  count_covered(uncovered);
  last_covers_ = covers;
  last_recorded_ = sync::now();
  raise_recorded(covers);
  return covers;
}

void stream_timeline::record_last_event(CUstream caller_handle, bool final) noexcept {
  if (!driver_alive() || lost_error_of(device_) != CUDA_SUCCESS) return;
  context_guard const here{context_};
  sync::lock const held{events_mutex_};
  if (here.result() == CUDA_SUCCESS && !captures(recorded_on(caller_handle)) && record_again(caller_handle) && final) {
    final_.store(true, std::memory_order_release);
    silent_frees_.store(0, std::memory_order_relaxed);
  }
}

void stream_timeline::record_requested(CUstream caller_handle) noexcept {
  cover_requested_.store(false, std::memory_order_relaxed);
  record_last_event(caller_handle, false);
  if (auto* const tell = on_requested_recorded.load(std::memory_order_acquire)) tell();
}

void stream_timeline::poll_last() noexcept {
  if (!last_open_) return;
  auto const result = interpret(device_, driver().event_query(last_event_->handle));
  if (result == CUDA_ERROR_NOT_READY || lost_error_of(device_) != CUDA_SUCCESS) return;
  last_open_ = false;
  if (result == CUDA_SUCCESS) return publish_completed(last_covers_);
  lose_last_event();
}

// The frees that the event covered count as uncovered again. Their number is not known: a count of 1 says that there
// are some.
void stream_timeline::lose_last_event() noexcept {
  last_open_ = false;
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  recorded_.store(size_ > 0 ? at(size_ - 1).covers : completed_.load(std::memory_order_relaxed),
                  std::memory_order_release);
}

void stream_timeline::query_legacy() noexcept {
  if (kind() != stream_kind::legacy || !driver_alive() || lost_error_of(device_) != CUDA_SUCCESS) return;
  relaxed_capture const relaxed;
  auto const covers = advance_epoch();
  context_guard const here{context_};
  // To ask whether the stream captures does not end a capture; to ask whether it is idle does.
  bool const idle = here.result() == CUDA_SUCCESS && !captures(CU_STREAM_LEGACY) &&
                    driver().stream_query(CU_STREAM_LEGACY) == CUDA_SUCCESS;
  if (idle) publish_completed(covers);
}

void stream_timeline::cover(std::optional<CUstream> caller_handle) noexcept {
  if (owns_handle()) {
    record(handle(), false, true);
  } else if (caller_handle) {
    if (!record_later(*caller_handle) && is_mortal()) record_last_event(*caller_handle, false);
  } else if (kind() == stream_kind::legacy) {
    query_legacy();
  } else {
    request_event();
  }
}

bool stream_timeline::wait(epoch e) noexcept {
  for (backoff pause{tuning::max_pass_pause};;) {
    if (newest_recorded() < e) cover(std::nullopt);
    poll();
    if (completed(e)) return true;
    bool const lost = !driver_alive() || lost_error_of(device_) != CUDA_SUCCESS;
    if (lost || !can_complete(e)) return false;
    sync::sleep_for(pause.next());
  }
}

bool stream_timeline::is_reusable() noexcept {
  if (uncovered_frees() > 0 || retained_.load(std::memory_order_acquire) > 0) return false;
  poll();
  sync::lock const held{events_mutex_};
  return size_ == 0 && !last_open_ && uncovered_frees() == 0;
}

// Old tags and orders of the earlier stream name epochs that are complete, so they stay true. The id is stored last: a
// call that sees it sees all other members as well.
void stream_timeline::rebind(stream_kind kind, std::uint64_t id, CUstream handle) noexcept {
  {
    sync::lock const held{clock_mutex_};
    clock_ = {};
  }
  publish_completed(advance_epoch());
  {
    sync::lock const held{events_mutex_};
    covered_frees_ = 0;
  }
  silent_frees_.store(0, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  unrecorded_frees_.store(0, std::memory_order_relaxed);
  unrecorded_bytes_.store(0, std::memory_order_relaxed);
  event_requested_.store(false, std::memory_order_relaxed);
  behind_.store(false, std::memory_order_relaxed);
  cover_requested_.store(false, std::memory_order_relaxed);
  capturing_.store(false, std::memory_order_relaxed);
  final_.store(false, std::memory_order_relaxed);
  adoptions_ = 0;
  handle_.store(handle, std::memory_order_relaxed);
  kind_.store(kind, std::memory_order_relaxed);
  id_.store(id, std::memory_order_release);
}

} // namespace gpumem::detail
