// Counts a stream's frees and numbers its epochs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
module gpumem:stream_epochs.impl;
import :stream_epochs;
import :tuning;

namespace gpumem::detail {

void stream_epochs::publish_completed(epoch e) noexcept {
  auto seen = completed_.load(std::memory_order_relaxed);
  while (seen < e && !completed_.compare_exchange_weak(seen, e, std::memory_order_acq_rel)) {}
}

bool stream_epochs::count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept {
  auto const count = unrecorded_frees_.fetch_add(frees, std::memory_order_relaxed) + frees;
  auto const sum = unrecorded_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  return count >= tuning::frees_per_event || sum >= max_bytes;
}

void stream_epochs::reset_unrecorded() noexcept {
  unrecorded_frees_.store(0, std::memory_order_relaxed);
  unrecorded_bytes_.store(0, std::memory_order_relaxed);
}

// A free reads its epoch before it counts itself. So the event covers each free whose count is taken here, since the
// epoch is closed afterwards; a free that counts itself later stays counted.
//
// With `precise`, returns the number after the current epoch, which only frees of the calling thread get. Both numbers
// are closed in one step, so no other thread can have read the returned one. Otherwise a free of another thread could
// get it, and the event would also cover work that follows that free.
closed_epoch stream_epochs::close(bool precise) noexcept {
  auto const frees = uncovered_frees_.exchange(0, std::memory_order_relaxed);
  return {precise ? now_.fetch_add(2, std::memory_order_acq_rel) + 1 : advance(), frees};
}

void stream_epochs::covered(closed_epoch const& by_event) noexcept {
  auto const most = tuning::covered_frees_per_silent * tuning::max_silent_frees;
  auto const sum = std::min(covered_frees_.load(std::memory_order_relaxed) + by_event.frees, most);
  covered_frees_.store(sum, std::memory_order_relaxed);
  silent_frees_.store(sum / tuning::covered_frees_per_silent, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  recorded_.store(std::max(by_event.number, recorded_.load(std::memory_order_relaxed)), std::memory_order_release);
}

void stream_epochs::not_covered(closed_epoch const& failed) noexcept {
  uncovered_frees_.fetch_add(failed.frees, std::memory_order_relaxed);
}

// The number of frees that the event covered is not known: a count of 1 says that there are some.
void stream_epochs::lose_event(epoch newest) noexcept {
  uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
  recorded_.store(std::max(newest, completed_.load(std::memory_order_relaxed)), std::memory_order_release);
}

void stream_epochs::restart() noexcept {
  publish_completed(advance());
  covered_frees_.store(0, std::memory_order_relaxed);
  uncovered_bytes_.store(0, std::memory_order_relaxed);
  forbid_silent();
  reset_unrecorded();
}

} // namespace gpumem::detail
