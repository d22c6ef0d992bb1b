// Return of memory to the upstream: by trim(), beyond the release threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
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
  all_shards_lock held{parts_.shards};
  run_deferred_frees();
  flush_thread_caches();
  parts_.rules.poll_streams(nullptr, parts_.everywhere());
  auto const given = parts_.backend.release(keep, held);
  requests_.count_change();
  requests_.wake_next(woken);
  return given;
}

// Returns whether the caller must post a pass: none is posted, or a late one was cancelled in favour of one due soon.
bool pool_engine::may_post(bool soon) noexcept {
  if (!driver_alive() || (pass_queued_ && !(soon && posted_late_ && try_cancel_timer(*this)))) return false;
  pass_queued_ = true;
  posted_late_ = !soon;
  process_is_exiting(); // from the first call on it notes the exit
  return true;
}

// The pause grows with the number of passes that found nothing new for requests that wait. If no request waits, it
// grows with the number of passes since the last free that called for one.
void pool_engine::schedule_pass() noexcept {
  if (!may_post(true)) return;
  auto const passes = requests_.has_waiting() ? requests_.count_pass() : idle_passes_;
  start_timer(*this, sync::now() + std::min<sync::duration>(min_pause * passes, max_pause));
}

// Posts a pass for `when`, but at least `max_pause` from now: the work before it may take time.
void pool_engine::post_late_pass(sync::time_point when) noexcept {
  if (may_post(false)) start_timer(*this, std::max(when, sync::now() + max_pause));
}

// A pass of the library thread. It serves the requests that wait. It gives complete memory back: what is beyond the
// release threshold, or all memory of a closed pool.
void pool_engine::expire() noexcept {
  requests_.run_pass();
  bool done = false, answered_meanwhile = false;
  {
    all_shards_lock held{parts_.shards};
    auto const beyond = [this] { return parts_.backend.chunks().reserved() > parts_.options.release_threshold; };
    pass_queued_ = false;
    pass_running_ = true;
    bool const may_go_on = !(parts_.backend.closed() || beyond()) || release_pass(held);
    pass_running_ = false;
    done = parts_.backend.closed() && parts_.backend.chunks().empty();
    bool const looks_on = (beyond() && idle_passes_ < max_idle_passes) || requests_.needs_pass();
    bool const more = parts_.backend.closed() ? !done : looks_on;
    bool const now = !process_is_exiting() && (may_go_on || !parts_.backend.closed());
    if (more && now) schedule_pass();
    if (now) requests_.watch_for_stall();
    if (more && !now && parts_.backend.closed()) {
      defer_release();
      request_events();
      answered_meanwhile = !process_is_exiting() && reuse_rules::may_complete(parts_.everywhere());
    }
  }
  if (answered_meanwhile) return retry_releases();
  if (done) delete this;
}

// Returns false if no event covers the memory that is still to go back.
bool pool_engine::release_pass(all_shards_lock& held) noexcept {
  try {
    flush_thread_caches(); // near the threshold, frees are cached and kept on quick lists again
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
    parts_.backend.release(parts_.backend.closed() ? 0 : parts_.options.release_threshold, held);
    bool const open = reuse_rules::may_complete(parts_.everywhere());
    bool const stuck = !open && !reuse_rules::streams_in_use(false, parts_.everywhere()).empty();
    idle_passes_ = open ? idle_passes_ + 1 : max_idle_passes;
    return !stuck;
  } catch (std::bad_alloc const&) {
    if (!held) held.lock(); // the next pass tries again
    return true;
  }
}

std::vector<stream_timeline*> pool_engine::streams_without_event() {
  return reuse_rules::streams_in_use(true, parts_.everywhere());
}

void pool_engine::refuse_requests() noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  refuse_requests(woken);
}

void pool_engine::refuse_requests(woken_waiters& woken) noexcept {
  requests_.set_closed();
  update_mode();
  flush_thread_caches();
  requests_.count_change();
  requests_.wake_ended(woken);
}

void pool_engine::return_part(stream_key const& key, void* pointer) noexcept {
  all_shards_lock const held{parts_.shards};
  auto& freed = *parts_.shards.find_live(pointer).that;
  requests_.return_part([&] {
    finish_free(freed, {key, pointer, std::nullopt, {&key.timeline(), end_use(key, &freed, std::nullopt)}},
                *freed.parent->shard);
  });
}

void pool_engine::on_first_waiter() noexcept {
  set_under_pressure(true);
  flush_thread_caches();
}

bool pool_engine::drop_last_handle() noexcept {
  timeline_registry::cover_own_defaults();
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  no_handles_ = true;
  refuse_requests(woken);
  return is_unused();
}

void pool_engine::close() noexcept {
  retry_releases();
  bool done = false;
  {
    all_shards_lock held{parts_.shards};
    parts_.backend.set_closed();
    if (!driver_alive()) return defer_release(); // no driver call may be made any more
    run_deferred_frees();
    if (pass_queued_ && try_cancel_timer(*this)) pass_queued_ = false;
    if (pass_queued_ || pass_running_) return; // the pass gives the memory back
    try {
      parts_.rules.poll_streams(nullptr, parts_.everywhere());
    } catch (std::bad_alloc const&) {
      // The library thread polls again.
    }
    parts_.backend.release(0, held);
    done = parts_.backend.chunks().empty();
    idle_passes_ = 0;
    if (!done) schedule_pass();
  }
  if (done) delete this;
}

} // namespace gpumem::detail
