// What goes back upstream: when asked for, beyond the threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <vector>
module gpumem:pool_release.impl;
import :deferred_release;
import :driver;
import :pool_backend;
import :pool_engine;
import :reuse_rules;
import :shard_list;
import :stream_timeline;
import :sync;
import :timeline_registry;
import :timer;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr unsigned max_idle_passes = 1000; // about a second
inline constexpr auto min_pause = 20us;
inline constexpr auto max_pause = 1ms;

} // namespace

std::size_t pool_engine::trim(std::size_t keep) {
  timeline_registry::cover_own_defaults();
  woken_waiters woken;
  all_shards_lock held{shards_};
  run_deferred_frees();
  flush_thread_caches();
  rules_.poll_streams(nullptr, everywhere());
  auto const given = backend_.release(keep, held);
  ++changes_;
  wake_next(woken);
  return given;
}

// Whether a pass is to be posted: none is, or one that is posted late makes way to one that is due soon.
bool pool_engine::may_post(bool soon) noexcept {
  if (!driver_alive() || (pass_queued_ && !(soon && posted_late_ && try_cancel_timer(*this)))) return false;
  pass_queued_ = true;
  posted_late_ = !soon;
  process_is_exiting(); // is watched from now on
  return true;
}

// The pause grows with the passes that found nothing new for requests that wait, or else with those that gave back.
void pool_engine::schedule_pass() noexcept {
  if (!may_post(true)) return;
  auto const passes = has_waiting() ? ++waiting_passes_ : idle_passes_;
  start_timer(*this, sync::now() + std::min<sync::duration>(min_pause * passes, max_pause));
}

// Not at once, since what has to come first may take its time.
void pool_engine::post_late_pass(sync::time_point when) noexcept {
  if (may_post(false)) start_timer(*this, std::max(when, sync::now() + max_pause));
}

// A pass of the library thread: looks at what has completed for requests that wait; gives back what is beyond the
// threshold, or all of a closed pool, as it completes.
void pool_engine::expire() noexcept {
  call_pressure();
  while (abort_one()) {}
  poll_for_waiters();
  bool done = false, answered_meanwhile = false;
  {
    all_shards_lock held{shards_};
    auto const beyond = [this] { return backend_.chunks().reserved() > options_.release_threshold; };
    pass_queued_ = false;
    pass_running_ = true;
    bool const may_go_on = !(backend_.closed() || beyond()) || release_pass(held);
    pass_running_ = false;
    done = backend_.closed() && backend_.chunks().empty();
    bool const looks_on =
        (beyond() && idle_passes_ < max_idle_passes) || needs_poll() || next_to_abort() || pressure_is_due();
    bool const more = backend_.closed() ? !done : looks_on;
    bool const now = !process_is_exiting() && (may_go_on || !backend_.closed());
    if (more && now) schedule_pass();
    if (now) watch_for_stall();
    if (more && !now && backend_.closed()) {
      defer_release();
      request_events();
      answered_meanwhile = !process_is_exiting() && reuse_rules::may_complete(everywhere());
    }
  }
  if (answered_meanwhile) return retry_releases();
  if (done) delete this;
}

// False: no event covers what is still to go back.
bool pool_engine::release_pass(all_shards_lock& held) noexcept {
  try {
    flush_thread_caches(); // near the threshold frees are kept apart again
    rules_.poll_streams(nullptr, everywhere());
    backend_.release(backend_.closed() ? 0 : options_.release_threshold, held);
    bool const open = reuse_rules::may_complete(everywhere());
    bool const stuck = !open && !reuse_rules::streams_in_use(false, everywhere()).empty();
    idle_passes_ = open ? idle_passes_ + 1 : max_idle_passes;
    return !stuck;
  } catch (std::bad_alloc const&) {
    if (!held) held.lock(); // the next pass looks again
    return true;
  }
}

std::vector<stream_timeline*> pool_engine::streams_without_event() {
  return reuse_rules::streams_in_use(true, everywhere());
}

bool pool_engine::drop_last_handle() noexcept {
  timeline_registry::cover_own_defaults();
  woken_waiters woken;
  all_shards_lock const held{shards_};
  no_handles_ = true;
  close_admission(woken);
  return is_unused();
}

void pool_engine::close() noexcept {
  retry_releases();
  bool done = false;
  {
    all_shards_lock held{shards_};
    backend_.set_closed();
    if (!driver_alive()) return defer_release(); // no call may be made any more
    run_deferred_frees();
    if (pass_queued_ && try_cancel_timer(*this)) pass_queued_ = false;
    if (pass_queued_ || pass_running_) return; // the pass takes over
    try {
      rules_.poll_streams(nullptr, everywhere());
    } catch (std::bad_alloc const&) {
      // The library thread looks again.
    }
    backend_.release(0, held);
    done = backend_.chunks().empty();
    idle_passes_ = 0;
    if (!done) schedule_pass();
  }
  if (done) delete this;
}

} // namespace gpumem::detail
