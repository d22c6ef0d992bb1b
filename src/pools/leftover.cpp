// Pools left behind, and when they are visited again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <new>
module gpumem:leftover.impl;
import :leftover;
import :driver;
import :sync;
import :timeline;
import :timer;

namespace gpumem::detail {
namespace {

std::atomic<leftover*> left{nullptr};

// The process is exiting: the library thread must come to an end.
std::atomic<bool> leaving_driver{false};
void note_leaving() noexcept { leaving_driver.store(true, std::memory_order_relaxed); }

} // namespace

bool leaving() noexcept {
  static bool const once = [] {
    at_driver_exit(note_leaving); // after the library thread's own registration, so it runs before that is joined
    return true;
  }();
  static_cast<void>(once);
  return leaving_driver.load(std::memory_order_relaxed);
}

void leftover::leave_behind() noexcept {
  next_left_ = left.load(std::memory_order_relaxed);
  while (!left.compare_exchange_weak(next_left_, this, std::memory_order_acq_rel)) {}
}

void leftover::want_events() noexcept {
  answered.store(revisit_left, std::memory_order_release);
  try {
    for (auto* const order : uncovered()) order->want();
  } catch (std::bad_alloc const&) {
    // The next pool that is made or ends looks again.
  }
}

void leftover::revisit_left() noexcept {
  if (!left.load(std::memory_order_relaxed) || !driver_alive() || leaving()) return;
  for (auto* at = left.exchange(nullptr, std::memory_order_acq_rel); at;) {
    auto& one = *at;
    at = at->next_left_;
    start_timer(one, sync::now());
  }
}

} // namespace gpumem::detail
