// Decides for which waiting request the pool polls, which request ends without memory, and when the library thread
// (gpumem's background thread) looks again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:progress_monitor.impl;
import :progress_monitor;
import :admission;
import :holder;
import :pass_timer;
import :pool_backend;
import :pool_options;
import :pool_parts;
import :pressure_list;
import :reuse_rules;
import :shard_list;
import :stall_detector;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

bool progress_monitor::update_work_pending() noexcept {
  bool const open = is_work_pending();
  if (work_was_pending_ && !open) parts_.requests.count_change();
  work_was_pending_ = open;
  return open;
}

// Returns whether a stream's use of free memory is not known to be complete.
bool progress_monitor::is_work_pending() const noexcept {
  if (reuse_rules::may_complete(parts_.everywhere())) return true;
  try {
    return !reuse_rules::streams_in_use(false, parts_.everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

waiter* progress_monitor::next_to_poll_for() const noexcept {
  if (!parts_.requests.has_waiting()) return nullptr;
  if (parts_.options.hardened.enabled || waiting_.has_deferred_frees()) return waiting_.queue.next_waiting();
  return waiting_.queue.next_for_turn([this](waiter const& item) {
    assert_all_shards_held();
    return waiting_.fits(item);
  });
}

bool progress_monitor::needs_poll() noexcept {
  auto const* const next = next_to_poll_for();
  if (!next) return false;
  bool const open = update_work_pending();
  return parts_.options.hardened.enabled || waiting_.has_deferred_frees() ||
         waiting_.change_count(*next) != next->seen_changes() || open;
}

bool progress_monitor::may_stall() const noexcept {
  return parts_.requests.has_waiting() && waiting_.queue.set_aside() == 0 &&
         (waiting_.queue.has_holders() || holders.has_marked());
}

bool progress_monitor::needs_pass() noexcept { return needs_poll() || next_to_abort() || is_pressure_due(); }

void progress_monitor::schedule_stall_check() noexcept {
  if (parts_.requests.has_waiting() && stall.enabled())
    parts_.passes.schedule_at(stall.stalls_at(waiting_.frees_of_others()));
}

void progress_monitor::schedule_poll() noexcept {
  if (!parts_.requests.has_waiting()) return;
  if (may_stall() || needs_poll() || is_pressure_due()) parts_.passes.schedule();
  schedule_stall_check();
}

// Returns the request that must end without memory; null if there is none. If the first request lacks memory, requests
// of younger work that can be rolled back are preempted: they end, and their work is rolled back. The youngest goes
// first, until the first request has enough. Otherwise a request ends only if work that waits holds all memory, or if
// the stall detector says so. This is wound-wait: Rosenkrantz, Stearns, Lewis, "System level concurrency control for
// distributed database systems" (1978).
waiter* progress_monitor::next_to_abort() noexcept {
  auto const& queue = waiting_.queue;
  auto* const first = queue.next_waiting();
  if (!first || !parts_.requests.has_waiting() || waiting_.has_deferred_frees() || parts_.backend.growing() ||
      parts_.backend.is_releasing() || pressure.pending())
    return nullptr;
  bool const fits = waiting_.fits(*first);
  if (fits &&
      (waiting_.change_count(*first) != first->seen_changes() || reuse_rules::may_complete(parts_.everywhere())))
    return nullptr;
  auto const yielding = queue.find_yielding(*first);
  auto const headroom = waiting_.headroom();
  // If enough bytes are free but the first request was refused, the free bytes lie in pieces and do not count.
  auto const needed = waiting_.rounded(*first), coming = preempted_ + (fits ? 0 : headroom);
  bool const enough = needed <= headroom + preempted_ + yielding.held;
  if (yielding.last && needed > coming && enough) return yielding.last;
  if (queue.set_aside() > 0) return nullptr;
  auto held = queue.held_by_parked([](holder const& each) { return holder_list::is_marked(each); });
  holders.visit_marked([&](holder const& each) { held += each.held(); });
  if ((held == 0 || held != parts_.live_bytes()) && !stall.has_stalled(waiting_.frees_of_others())) return nullptr;
  if (yielding.last) return yielding.last;
  auto* const last = queue.last_with_memory();
  return last ? last : first;
}

// Returns the bytes that the waiting requests lack. If enough bytes are free for all requests, the bytes lie in pieces.
// Then the result is the size of the first request.
std::size_t progress_monitor::wanted() const noexcept {
  auto const* const first = waiting_.queue.next_waiting();
  if (!first || !parts_.requests.has_waiting()) return 0;
  auto const could_have = waiting_.headroom();
  auto const waiting = waiting_.queue.waiting_bytes();
  return waiting > could_have ? waiting - could_have : first->bytes();
}

} // namespace gpumem::detail
