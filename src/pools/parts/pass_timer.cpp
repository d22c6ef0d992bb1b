// Starts the passes of the library thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
module gpumem:pass_timer.impl;
import :pass_timer;
import :admission;
import :backoff;
import :deferred_release;
import :driver;
import :sync;
import :timer;
import :tuning;

namespace gpumem::detail {

void pass_timer::schedule() noexcept {
  if (!may_post(true)) return;
  auto const pause = (requests_.has_waiting() ? waiting_pause_ : idle_pause_).next();
  start_timer(pass_, sync::now() + pause);
}

void pass_timer::schedule_at(sync::time_point when) noexcept {
  if (may_post(false)) start_timer(pass_, std::max(when, sync::now() + tuning::max_pass_pause));
}

bool pass_timer::cancel() noexcept {
  if (queued_ && try_cancel_timer(pass_)) queued_ = false;
  return !queued_ && !running_;
}

void pass_timer::begin_pass() noexcept {
  queued_ = false;
  running_ = true;
}

// Returns whether the caller must post a pass, because none is posted. A pass that is due soon first cancels a posted
// late pass.
bool pass_timer::may_post(bool soon) noexcept {
  if (!driver_alive() || (queued_ && !(soon && late_ && try_cancel_timer(pass_)))) return false;
  queued_ = true;
  late_ = !soon;
  process_is_exiting(); // the first call registers a function that will note the exit of the process
  return true;
}

} // namespace gpumem::detail
