// The list of closed pools whose memory cannot go back to the upstream yet, and the retries of their release.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <new>
module gpumem:deferred_release.impl;
import :deferred_release;
import :driver;
import :stream_timeline;
import :sync;
import :timer;

namespace gpumem::detail {
namespace {

std::atomic<deferred_release*> deferred{nullptr};

// Set when the process exits: the library thread must then end.
std::atomic<bool> exiting{false};
void set_exiting() noexcept { exiting.store(true, std::memory_order_relaxed); }

} // namespace

bool process_is_exiting() noexcept {
  static bool const once = [] {
    at_driver_exit(set_exiting); // registered last, so it runs before the background thread is joined
    return true;
  }();
  static_cast<void>(once);
  return exiting.load(std::memory_order_relaxed);
}

void deferred_release::defer_release() noexcept {
  next_deferred_ = deferred.load(std::memory_order_relaxed);
  while (!deferred.compare_exchange_weak(next_deferred_, this, std::memory_order_acq_rel)) {}
}

void deferred_release::request_events() noexcept {
  on_requested_recorded.store(retry_releases, std::memory_order_release);
  try {
    for (auto* const timeline : streams_without_event()) timeline->cover_request().raise();
  } catch (std::bad_alloc const&) {
    // The next pool that is made or ends retries the releases.
  }
}

void deferred_release::retry_releases() noexcept {
  if (!deferred.load(std::memory_order_relaxed) || !driver_alive() || process_is_exiting()) return;
  for (auto* at = deferred.exchange(nullptr, std::memory_order_acq_rel); at;) {
    auto& one = *at;
    at = at->next_deferred_;
    start_timer(one, sync::now());
  }
}

} // namespace gpumem::detail
