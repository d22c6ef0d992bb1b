// Timelines of streams that may die: their last event, the end of a stream, and the next one.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
module gpumem:timeline_mortal.impl;
import :timeline;
import :cuda;
import :device;
import :driver;
import :sync;

namespace gpumem::detail {
namespace {

// The legacy stream is that of the current context.
class current_context {
public:
  explicit current_context(CUcontext context) noexcept : pushed_{driver().ctx_push_current(context) == CUDA_SUCCESS} {}
  current_context(current_context const&) = delete;
  current_context& operator=(current_context const&) = delete;
  ~current_context() {
    CUcontext popped = nullptr;
    if (pushed_) driver().ctx_pop_current(&popped);
  }
  inline bool pushed() const noexcept { return pushed_; }

private:
  bool pushed_;
};

} // namespace

CUstream timeline::recorded_on(CUstream given) const noexcept {
  return kind() == stream_kind::null ? CU_STREAM_PER_THREAD : given;
}

epoch timeline::end_use_with_event(epoch e, std::optional<CUstream> given, std::size_t bytes) noexcept {
  if (final_.load(std::memory_order_acquire)) return last_covers_;
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  uncovered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (!given || !driver_alive() || loss_of(device_) != CUDA_SUCCESS) return e;
  sync::lock const held{evidence_guard_};
  auto const recorded = record_again(*given);
  return recorded ? recorded : e;
}

void timeline::note_covered(std::uint32_t frees) noexcept {
  covered_frees_ = std::min(covered_frees_ + frees, frees_a_silent_one * most_silent_frees);
  silent_frees_.store(covered_frees_ / frees_a_silent_one, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
}

// Under evidence_guard_. The epoch that the last event now covers; 0: it could not be recorded.
epoch timeline::record_again(CUstream given) noexcept {
  auto const on = recorded_on(given);
  if (!last_event_ || captures(on)) return 0;
  auto const uncovered = uncovered_frees_.exchange(0, std::memory_order_relaxed);
  auto const covers = close_epoch();
  auto const result = judge(device_, driver().event_record(last_event_->handle, on));
  if (result != CUDA_SUCCESS) { // what the event covered before it still covers
    uncovered_frees_.fetch_add(uncovered, std::memory_order_relaxed);
    return 0;
  }
  if (captures(on)) { // another thread has begun it meanwhile
    uncovered_frees_.fetch_add(uncovered, std::memory_order_relaxed);
    lose_last_event();
    return 0;
  }
  last_open_ = true;
  note_covered(uncovered);
  last_covers_ = covers;
  last_recorded_ = sync::now();
  note_evidence(covers);
  return covers;
}

void timeline::record_last(CUstream given, bool final) noexcept {
  if (!driver_alive() || loss_of(device_) != CUDA_SUCCESS) return;
  current_context const here{context_};
  sync::lock const held{evidence_guard_};
  if (here.pushed() && !captures(recorded_on(given)) && record_again(given) && final) {
    final_.store(true, std::memory_order_release);
    silent_frees_.store(0, std::memory_order_relaxed);
  }
}

void timeline::answer(CUstream given) noexcept {
  wanted_.store(false, std::memory_order_relaxed);
  record_last(given, false);
  if (auto* const tell = answered.load(std::memory_order_acquire)) tell();
}

// Under evidence_guard_, with captures relaxed.
void timeline::poll_last() noexcept {
  if (!last_open_) return;
  auto const result = judge(device_, driver().event_query(last_event_->handle));
  if (result == CUDA_ERROR_NOT_READY || loss_of(device_) != CUDA_SUCCESS) return;
  last_open_ = false;
  if (result == CUDA_SUCCESS) return publish_completed(last_covers_);
  lose_last_event();
}

// The frees that the event covered are uncovered again. Their number is not known: a count of 1 says that there are
// some.
void timeline::lose_last_event() noexcept {
  last_open_ = false;
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  recorded_.store(size_ > 0 ? at(size_ - 1).covers : completed_.load(std::memory_order_relaxed),
                  std::memory_order_release);
}

void timeline::query_legacy() noexcept {
  if (kind() != stream_kind::legacy || !driver_alive() || loss_of(device_) != CUDA_SUCCESS) return;
  relaxed_capture const relaxed;
  auto const covers = close_epoch();
  current_context const here{context_};
  // The question whether it captures disturbs no capture; the one whether it is idle does.
  bool const idle =
      here.pushed() && !captures(CU_STREAM_LEGACY) && driver().stream_query(CU_STREAM_LEGACY) == CUDA_SUCCESS;
  if (idle) publish_completed(covers);
}

void timeline::cover(std::optional<CUstream> given) noexcept {
  if (owns_handle()) given = handle();
  if (given) {
    if (!record_late(*given) && is_mortal()) record_last(*given, false);
  } else if (kind() == stream_kind::legacy) {
    query_legacy();
  } else {
    ask();
  }
}

bool timeline::wait(epoch e) noexcept {
  constexpr sync::duration first_nap = std::chrono::microseconds{20}, longest_nap = std::chrono::milliseconds{1};
  for (auto nap = first_nap;; nap = std::min(2 * nap, longest_nap)) {
    if (newest_evidence() < e) cover(std::nullopt);
    poll();
    if (completed(e)) return true;
    bool const lost = !driver_alive() || loss_of(device_) != CUDA_SUCCESS;
    if (lost || !can_complete(e)) return false;
    sync::sleep_for(nap);
  }
}

bool timeline::is_over() noexcept {
  if (uncovered_frees() > 0 || holders_.load(std::memory_order_acquire) > 0) return false;
  poll();
  sync::lock const held{evidence_guard_};
  return size_ == 0 && !last_open_ && uncovered_frees() == 0;
}

// Stale tags and orders of the earlier stream name epochs that are complete, and stay true. The id comes last: a call
// that finds it finds the rest.
void timeline::serve(stream_kind kind, std::uint64_t id, CUstream handle) noexcept {
  {
    sync::lock const held{clock_guard_};
    clock_ = {};
  }
  publish_completed(close_epoch());
  {
    sync::lock const held{evidence_guard_};
    covered_frees_ = 0;
  }
  silent_frees_.store(0, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  unrecorded_frees_.store(0, std::memory_order_relaxed);
  unrecorded_bytes_.store(0, std::memory_order_relaxed);
  asked_.store(false, std::memory_order_relaxed);
  behind_.store(false, std::memory_order_relaxed);
  wanted_.store(false, std::memory_order_relaxed);
  capturing_.store(false, std::memory_order_relaxed);
  final_.store(false, std::memory_order_relaxed);
  adoptions_ = 0;
  handle_.store(handle, std::memory_order_relaxed);
  kind_.store(kind, std::memory_order_relaxed);
  id_.store(id, std::memory_order_release);
}

} // namespace gpumem::detail
