// What goes back upstream: when asked for, beyond the threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <vector>
module gpumem:pool_return.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :driver;
import :leftover;
import :shards;
import :sync;
import :timeline;
import :timeline_registry;
import :timer;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr unsigned most_passes = 1000; // about a second
inline constexpr auto shortest_pause = 20us;
inline constexpr auto longest_pause = 1ms;

} // namespace

std::size_t pool_engine::trim(std::size_t keep) {
  timeline_registry::cover_own_defaults();
  called_waiters calls;
  shard_locks held{shards_};
  serve_deferred();
  sweep();
  order_.learn_completion(nullptr, everywhere());
  auto const given = supply_.give_back(keep, held);
  ++changes_;
  call_next(calls);
  return given;
}

// Whether a pass is to be posted: none is, or one that is posted late makes way to one that is due soon.
bool pool_engine::may_post(bool soon) noexcept {
  if (!driver_alive() || (posted_ && !(soon && posted_late_ && retract_timer(*this)))) return false;
  posted_ = true;
  posted_late_ = !soon;
  leaving(); // is watched from now on
  return true;
}

// The pause grows with the passes that found nothing new for requests that wait, or else with those that gave back.
void pool_engine::post_pass() noexcept {
  if (!may_post(true)) return;
  auto const passes = has_waiting() ? ++watches_ : idle_passes_;
  start_timer(*this, sync::now() + std::min<sync::duration>(shortest_pause * passes, longest_pause));
}

// Not at once, since what has to come first may take its time.
void pool_engine::post_late_pass(sync::time_point when) noexcept {
  if (may_post(false)) start_timer(*this, std::max(when, sync::now() + longest_pause));
}

// A pass of the library thread: looks at what has completed for requests that wait; gives back what is beyond the
// threshold, or all of a closed pool, as it completes.
void pool_engine::expire() noexcept {
  call_pressure();
  while (end_one_for_others()) {}
  watch();
  bool done = false, answered_meanwhile = false;
  {
    shard_locks held{shards_};
    auto const beyond = [this] { return supply_.chunks().reserved() > options_.release_threshold; };
    posted_ = false;
    passing_ = true;
    bool const may_go_on = !(supply_.closed() || beyond()) || pass(held);
    passing_ = false;
    done = supply_.closed() && supply_.chunks().empty();
    bool const looks_on = (beyond() && idle_passes_ < most_passes) || watches() || next_to_end() || pressure_is_due();
    bool const more = supply_.closed() ? !done : looks_on;
    bool const now = !leaving() && (may_go_on || !supply_.closed());
    if (more && now) post_pass();
    if (now) watch_for_stall();
    if (more && !now && supply_.closed()) {
      leave_behind();
      want_events();
      answered_meanwhile = !leaving() && pool_order::may_complete(everywhere());
    }
  }
  if (answered_meanwhile) return revisit_left();
  if (done) delete this;
}

// False: no event covers what is still to go back.
bool pool_engine::pass(shard_locks& held) noexcept {
  try {
    sweep(); // near the threshold frees are kept apart again
    order_.learn_completion(nullptr, everywhere());
    supply_.give_back(supply_.closed() ? 0 : options_.release_threshold, held);
    bool const open = pool_order::may_complete(everywhere());
    bool const stuck = !open && !pool_order::open_timelines(false, everywhere()).empty();
    idle_passes_ = open ? idle_passes_ + 1 : most_passes;
    return !stuck;
  } catch (std::bad_alloc const&) {
    if (!held) held.lock(); // the next pass looks again
    return true;
  }
}

std::vector<timeline*> pool_engine::uncovered() { return pool_order::open_timelines(true, everywhere()); }

bool pool_engine::abandon() noexcept {
  timeline_registry::cover_own_defaults();
  called_waiters calls;
  shard_locks const held{shards_};
  abandoned_ = true;
  shut_door(calls);
  return is_unused();
}

void pool_engine::close() noexcept {
  revisit_left();
  bool done = false;
  {
    shard_locks held{shards_};
    supply_.note_closed();
    if (!driver_alive()) return leave_behind(); // no call may be made any more
    serve_deferred();
    if (posted_ && retract_timer(*this)) posted_ = false;
    if (posted_ || passing_) return; // the pass takes over
    try {
      order_.learn_completion(nullptr, everywhere());
    } catch (std::bad_alloc const&) {
      // The library thread looks again.
    }
    supply_.give_back(0, held);
    done = supply_.chunks().empty();
    idle_passes_ = 0;
    if (!done) post_pass();
  }
  if (done) delete this;
}

} // namespace gpumem::detail
