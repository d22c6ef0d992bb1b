// The library thread's work for requests that wait: it polls, calls pressure callbacks, and ends requests.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
module gpumem:request_queue_passes.impl;
import :request_queue;
import :deadlock_monitor;
import :frees;
import :holder;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pressure_calls;
import :reuse_rules;
import :shard_list;
import :sync;
import :waiter;

namespace gpumem::detail {

bool stall_detector::enabled() const noexcept { return timeout_ > sync::duration{0}; }

sync::time_point stall_detector::stalls_at(std::uint64_t changes) noexcept {
  auto const signs = changes - vain_ + grants_;
  if (std::exchange(signs_, signs) != signs) quiet_since_ = sync::now();
  return quiet_since_ + std::min<sync::duration>(timeout_, std::chrono::years{1}); // so that the sum cannot overflow
}

bool stall_detector::has_stalled(std::uint64_t changes) noexcept {
  return enabled() && stalls_at(changes) <= sync::now();
}

bool progress_monitor::update_work_pending() noexcept {
  bool const open = is_work_pending();
  if (work_was_pending_ && !open) parts_.requests.count_change();
  work_was_pending_ = open;
  return open;
}

// Returns whether a stream's use of free memory is not known to be complete.
bool progress_monitor::is_work_pending() const noexcept {
  if (reuse_rules::may_complete(parts_.shards.everywhere())) return true;
  try {
    return !reuse_rules::streams_in_use(false, parts_.shards.everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

waiter* progress_monitor::next_to_poll_for() const noexcept {
  if (!parts_.requests.has_waiting()) return nullptr;
  if (parts_.options.hardened.enabled || requests_.has_deferred_frees()) return requests_.queue.next_waiting();
  return requests_.queue.next_for_turn([this](waiter const& item) {
    assert_all_shards_held();
    return requests_.fits(item);
  });
}

bool progress_monitor::needs_poll() noexcept {
  auto const* const next = next_to_poll_for();
  if (!next) return false;
  bool const open = update_work_pending();
  return parts_.options.hardened.enabled || requests_.has_deferred_frees() ||
         requests_.change_count(*next) != next->seen_changes() || open;
}

void progress_monitor::schedule_look() noexcept {
  bool const waits = requests_.queue.has_holders() || holder::any_marked();
  if (!parts_.requests.has_waiting() || requests_.queue.set_aside() > 0 || !waits) return;
  look_is_due_ = true;
  parts_.passes.schedule();
}

bool progress_monitor::needs_pass() noexcept { return needs_poll() || look_is_due_ || is_pressure_due(); }

void progress_monitor::schedule_stall_check() noexcept {
  if (parts_.requests.has_waiting() && stall.enabled())
    parts_.passes.schedule_at(stall.stalls_at(requests_.frees_of_others()));
}

void progress_monitor::schedule_poll() noexcept {
  if (!parts_.requests.has_waiting()) return;
  schedule_look();
  if (needs_poll() || is_pressure_due()) parts_.passes.schedule();
  schedule_stall_check();
}

// While a growth or a pressure callback is in progress, or while a poll may find memory for the first request, the
// request may go on without a free.
place_state progress_monitor::state(waiter const& first) noexcept {
  auto const live = parts_.shards.live_bytes() - parts_.caches.snapshot().cached_requested;
  place_state now{requests_.queue, static_cast<std::size_t>(live), requests_.headroom(), requests_.rounded(first)};
  now.fits = requests_.fits(first);
  bool const tries = now.fits && (requests_.change_count(first) != first.seen_changes() ||
                                  reuse_rules::may_complete(parts_.shards.everywhere()));
  bool const in_change = parts_.backend->growing() || parts_.backend->is_releasing();
  if (in_change) schedule_look(); // for the case that the request gets nothing from that
  now.may_go_on = tries || in_change || requests_.has_deferred_frees() || pressure.pending();
  now.has_stalled = stall.has_stalled(requests_.frees_of_others());
  return now;
}

// Returns the bytes that the waiting requests lack. If enough bytes are free for all requests, the bytes lie in pieces.
// Then the result is the size of the first request.
std::size_t progress_monitor::wanted() const noexcept {
  auto const* const first = requests_.queue.next_waiting();
  if (!first || !parts_.requests.has_waiting()) return 0;
  auto const could_have = requests_.headroom();
  auto const waiting = requests_.queue.waiting_bytes();
  return waiting > could_have ? waiting - could_have : first->bytes();
}

void request_passes::run() noexcept {
  call_pressure();
  end_deadlocks();
  poll();
}

void request_passes::call_pressure() noexcept {
  for (;;) {
    pressure_call* next = nullptr;
    {
      all_shards_lock const lock{parts_.shards};
      if (monitor_.wanted() > 0) next = monitor_.pressure.begin_next();
    }
    if (!next) return;
    next->post();
  }
}

void request_passes::end_deadlocks() noexcept {
  {
    all_shards_lock const lock{parts_.shards};
    monitor_.begin_look();
    if (!parts_.requests.has_waiting()) return;
  }
  deadlock_monitor::get().look();
}

// Most pools have no waiting request, so this does not lock their shards.
void request_passes::show(visitor& visitor) noexcept {
  if (!parts_.requests.has_waiting()) return;
  all_shards_lock const lock{parts_.shards};
  auto const* const first = requests_.queue.next_waiting();
  if (first && parts_.requests.has_waiting()) visitor.see(monitor_.state(*first));
}

// The work whose request ends may free memory, so the stall detector counts the end as progress.
void request_passes::end_wait(waiter& item, woken_waiters& waiters) noexcept {
  assert_all_shards_held();
  monitor_.stall.count_grant();
  queue_.count_failure(item);
  queue_.remove(item, waiters);
}

// Polls, and gives a turn to the next request that may succeed now. The pool counts changes, such as frees, after which
// requests may succeed. In a hardened pool, and with `reuse_policy::ordered`, the count does not show that work has
// completed. So in these pools a request tries after each poll. Complete ranges are made ready even if no work is
// pending, since another thread may have seen the work complete.
void request_passes::poll() noexcept {
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  if (!parts_.requests.has_waiting()) return;
  try {
    frees_.run_deferred(nullptr);
    parts_.rules.poll_streams(nullptr, parts_.shards.everywhere());
  } catch (std::bad_alloc const&) {
    // The host is out of memory: the next pass polls again.
  }
  parts_.rules.promote_completed(parts_.shards.everywhere());
  monitor_.update_work_pending();
  bool const counts_changes = !parts_.options.hardened.enabled && parts_.options.cross_stream != reuse_policy::ordered;
  auto* const next = monitor_.next_to_poll_for();
  if (!next || (counts_changes && requests_.change_count(*next) == next->seen_changes())) return;
  if (counts_changes) parts_.passes.restart_waiting();
  if (!counts_changes) next->set_seen_changes(0);
  if (parts_.options.hardened.enabled) queue_.give_turn(*next, waiters); // its attempt empties the quarantine
  queue_.wake_next(waiters);
}

void request_passes::on_holder_event(holder& unit, holder_event event) noexcept {
  if (event == holder_event::begins) return unit.add_place(*this);
  if (event == holder_event::ends) return;
  all_shards_lock const lock{parts_.shards};
  monitor_.schedule_poll();
}

void request_passes::add_pressure_call(pressure_call& item) {
  all_shards_lock const lock{parts_.shards};
  monitor_.pressure.add(item);
  monitor_.pressure.on_park();
  monitor_.schedule_poll();
}

void request_passes::remove_pressure_call(pressure_call& item) noexcept {
  all_shards_lock const lock{parts_.shards};
  monitor_.pressure.remove(item);
  monitor_.schedule_poll();
}

std::size_t request_passes::begin_pressure(pressure_call& call) noexcept {
  all_shards_lock const lock{parts_.shards};
  auto const bytes = monitor_.wanted();
  monitor_.pressure.on_begin(call, bytes, requests_.change_count());
  return bytes;
}

// The function may have freed memory in another resource. If the upstream had refused a request, it may then have
// memory, so the requests try once more.
void request_passes::end_pressure(pressure_call& call, std::size_t freed_bytes) noexcept {
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  monitor_.pressure.on_end(call, freed_bytes, requests_.change_count());
  if (freed_bytes > 0 && requests_.clear_upstream_limit()) {
    parts_.requests.count_change();
    queue_.wake_next(waiters);
  }
  monitor_.schedule_poll();
}

} // namespace gpumem::detail
