// Decides for which waiting request the pool polls, and when the library thread looks again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:progress_monitor.impl;
import :progress_monitor;
import :deadlock_monitor;
import :holder;
import :pool_backend;
import :pool_mode;
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

void progress_monitor::schedule_look() noexcept {
  bool const waits = waiting_.queue.has_holders() || holder::any_marked();
  if (!parts_.requests.has_waiting() || waiting_.queue.set_aside() > 0 || !waits) return;
  look_is_due_ = true;
  parts_.passes.schedule();
}

bool progress_monitor::needs_pass() noexcept { return needs_poll() || look_is_due_ || is_pressure_due(); }

void progress_monitor::schedule_stall_check() noexcept {
  if (parts_.requests.has_waiting() && stall.enabled())
    parts_.passes.schedule_at(stall.stalls_at(waiting_.frees_of_others()));
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
  place_state now{waiting_.queue, parts_.live_bytes(), waiting_.headroom(), waiting_.rounded(first)};
  now.fits = waiting_.fits(first);
  bool const tries = now.fits && (waiting_.change_count(first) != first.seen_changes() ||
                                  reuse_rules::may_complete(parts_.everywhere()));
  bool const in_change = parts_.backend.growing() || parts_.backend.is_releasing();
  if (in_change) schedule_look(); // for the case that the request gets nothing from that
  now.may_go_on = tries || in_change || waiting_.has_deferred_frees() || pressure.pending();
  now.has_stalled = stall.has_stalled(waiting_.frees_of_others());
  return now;
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
