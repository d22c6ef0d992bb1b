// The signal between the coroutine's last thread and the one that waits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <exception>
#include <mutex>
module gpumem:sync_wait.impl;
import :sync_wait;
import :driver;
import :sync;

namespace gpumem::detail {

sync_signal::sync_signal() { throw_if_child(); }

// Notified under the lock: the waiting thread cannot leave, and take the signal with it, before this has.
std::coroutine_handle<> sync_signal::child_finished() noexcept {
  sync::lock const held{mutex_};
  arrived_ = true;
  wake_.notify_one();
  return std::noop_coroutine();
}

void sync_signal::wait() {
  sync::lock held{mutex_};
  while (!arrived_) wake_.wait(held);
  if (error_) std::rethrow_exception(error_);
}

} // namespace gpumem::detail
