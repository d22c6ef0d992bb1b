// sync_wait: the signal from the thread on which the coroutine ends to the thread that waits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <exception>
module gpumem:sync_wait.impl;
import :sync_wait;
import :driver;
import :sync;

namespace gpumem::detail {

sync_signal::sync_signal() { throw_if_child(); }

// Notifies under the lock. Otherwise the waiting thread could return and destroy the signal during the notification.
std::coroutine_handle<> sync_signal::child_finished() noexcept {
  sync::lock const lock{mutex_};
  arrived_ = true;
  wake_.notify_one();
  return std::noop_coroutine();
}

void sync_signal::wait() {
  sync::lock const lock{mutex_};
  while (!arrived_) wake_.wait(mutex_);
  if (error_) std::rethrow_exception(error_);
}

} // namespace gpumem::detail
