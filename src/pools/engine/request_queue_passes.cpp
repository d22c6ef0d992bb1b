// The library thread's work for requests that wait: it polls, calls pressure callbacks, and ends requests.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
module gpumem:request_queue_passes.impl;
import :request_queue;
import :error;
import :holder;
import :pool_backend;
import :pool_options;
import :pool_parts;
import :pressure_call;
import :pressure_list;
import :reuse_rules;
import :shard_list;
import :stall_detector;
import :sync;
import :waiter;

namespace gpumem::detail {

// Returns whether work on free memory is pending. Its end counts as a change, whichever call has seen the work
// complete.
bool request_queue::update_work_pending() noexcept {
  bool const open = is_work_pending();
  changes_ += work_was_pending_ && !open;
  work_was_pending_ = open;
  return open;
}

// Returns whether some stream's use of free memory is not known to be complete.
bool request_queue::is_work_pending() const noexcept {
  if (reuse_rules::may_complete(parts_.everywhere())) return true;
  try {
    return !reuse_rules::streams_in_use(false, parts_.everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

// Returns the request that may lack only the completion of work, for which only the library thread polls; null if none.
waiter* request_queue::next_to_poll_for() noexcept {
  if (!has_waiting()) return nullptr;
  if (parts_.options.hardened.enabled || owner_.has_deferred_frees()) return queue_.next_waiting();
  return queue_.next_for_turn([this](waiter const& item) { return fits(item); });
}

bool request_queue::needs_poll() noexcept {
  auto const* const next = next_to_poll_for();
  if (!next) return false;
  bool const open = update_work_pending();
  return parts_.options.hardened.enabled || owner_.has_deferred_frees() ||
         change_count(*next) != next->seen_changes() || open;
}

// Returns whether work that waits could hold all memory; does not add up what each holder has.
bool request_queue::may_stall() const noexcept {
  return has_waiting() && queue_.set_aside() == 0 && (queue_.has_holders() || holders_.has_marked());
}

bool request_queue::needs_pass() noexcept { return needs_poll() || next_to_abort() || pressure_is_due(); }

void request_queue::watch_for_stall() noexcept {
  if (has_waiting() && stall_.enabled()) owner_.post_late_pass(stall_.stalls_at(frees_of_others()));
}

// Schedules a pass of the library thread if it has to poll, to call a pressure callback, or to look for a stall. Posts
// a late pass for the time at which the requests count as stalled.
void request_queue::schedule_poll() noexcept {
  if (!has_waiting()) return;
  if (may_stall() || needs_poll() || pressure_is_due()) owner_.schedule_pass();
  watch_for_stall();
}

// Returns the request that ends so that other requests can go on; null if none. Older work does not wait for younger
// work that waits itself and can be rolled back: the youngest is preempted first, until there is enough. Otherwise a
// request ends only if work that waits holds all memory, or if the stall detector says so. Wound-wait: Rosenkrantz,
// Stearns, Lewis, "System level concurrency control for distributed database systems" (1978).
waiter* request_queue::next_to_abort() noexcept {
  auto* const first = queue_.next_waiting();
  if (!first || !has_waiting() || owner_.has_deferred_frees() || parts_.backend.growing() || pressure_list_.pending())
    return nullptr;
  if (fits(*first) && (change_count(*first) != first->seen_changes() || reuse_rules::may_complete(parts_.everywhere())))
    return nullptr;
  auto const yielding = queue_.find_yielding(*first);
  // If the first request fits and was refused, the free bytes lie in pieces and do not count.
  auto const needed = rounded(*first), coming = preempted_ + (fits(*first) ? 0 : headroom());
  bool const enough = needed <= headroom() + preempted_ + yielding.held;
  if (yielding.last && needed > coming && enough) return yielding.last;
  if (queue_.set_aside() > 0) return nullptr;
  auto held = queue_.held_by_parked([](holder const& each) { return holder_list::is_marked(each); });
  holders_.visit_marked([&](holder const& each) { held += each.held(); });
  if ((held == 0 || held != parts_.live_bytes()) && !stall_.has_stalled(frees_of_others())) return nullptr;
  if (yielding.last) return yielding.last;
  auto* const last = queue_.last_with_memory();
  return last ? last : first;
}

// The library thread calls this. Returns false if no request ends. The work whose request ends goes on, and counts as
// work that may free memory.
bool request_queue::abort_one() noexcept {
  waiter* ended = nullptr;
  auto why = outcome::stalled;
  {
    woken_waiters woken;
    all_shards_lock const held{parts_.shards};
    ended = next_to_abort();
    if (!ended) return false;
    auto* const work = ended->holder();
    if (work && work->may_roll_back() && ended != queue_.next_waiting()) {
      why = outcome::preempted;
      preempted_ += work->preempt(ended->bytes());
    }
    stall_.count_grant();
    remove_waiter(*ended, woken);
  }
  ended->refuse(failure{why, 0, ended->bytes()});
  return true;
}

void request_queue::on_holder_event(holder& unit, holder_event what) noexcept {
  if (what == holder_event::begins) return holders_.add(unit);
  if (what == holder_event::ends) return holders_.remove(unit);
  all_shards_lock const held{parts_.shards};
  if (what == holder_event::waits) holders_.mark(unit);
  if (what == holder_event::resumes) holders_.unmark(unit);
  if (what == holder_event::rolled_back) preempted_ -= unit.end_giving_way();
  schedule_poll();
}

// The library thread calls this. In a hardened pool, and with `reuse_policy::ordered`, the count of changes does not
// tell whether anything is new, so a request tries after each poll. This promotes ranges even if no work is pending:
// another thread may have seen the work complete.
void request_queue::poll() noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  if (!has_waiting()) return;
  try {
    owner_.run_deferred_frees();
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
  } catch (std::bad_alloc const&) {
    // The host is out of memory: the next pass polls again.
  }
  parts_.rules.promote_completed(parts_.everywhere());
  update_work_pending();
  bool const counts_changes = !parts_.options.hardened.enabled && parts_.options.cross_stream != reuse_policy::ordered;
  auto* const next = next_to_poll_for();
  if (!next || (counts_changes && change_count(*next) == next->seen_changes())) return;
  if (counts_changes) waiting_passes_ = 0;
  if (!counts_changes) next->set_seen_changes(0);
  if (parts_.options.hardened.enabled) give_turn(*next, woken); // its attempt empties the quarantine
  wake_next(woken);
}

void request_queue::add_pressure_call(pressure_call& item) {
  all_shards_lock const held{parts_.shards};
  pressure_list_.add(item);
  pressure_list_.on_park();
  schedule_poll();
}

void request_queue::remove_pressure_call(pressure_call& item) noexcept {
  all_shards_lock const held{parts_.shards};
  pressure_list_.remove(item);
  schedule_poll();
}

// Returns the bytes for which requests wait and which they could not have now. If enough bytes are free, but in pieces,
// returns the bytes of the first request.
std::size_t request_queue::wanted() const noexcept {
  auto const* const first = queue_.next_waiting();
  if (!first || !has_waiting()) return 0;
  auto const could_have = headroom();
  auto const waiting = queue_.waiting_bytes();
  return waiting > could_have ? waiting - could_have : first->bytes();
}

void request_queue::run_pass() noexcept {
  call_pressure();
  while (abort_one()) {}
  poll();
}

// The library thread calls this.
void request_queue::call_pressure() noexcept {
  for (;;) {
    pressure_call* next = nullptr;
    {
      all_shards_lock const held{parts_.shards};
      if (wanted() > 0) next = pressure_list_.begin_next();
    }
    if (!next) return;
    next->post();
  }
}

std::size_t request_queue::begin_pressure(pressure_call& call) noexcept {
  all_shards_lock const held{parts_.shards};
  auto const bytes = wanted();
  pressure_list_.on_begin(call, bytes, change_count());
  return bytes;
}

void request_queue::end_pressure(pressure_call& call, std::size_t freed) noexcept {
  all_shards_lock const held{parts_.shards};
  pressure_list_.on_end(call, freed, change_count());
  schedule_poll();
}

} // namespace gpumem::detail
