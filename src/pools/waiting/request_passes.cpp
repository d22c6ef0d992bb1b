// The library thread's work for requests that wait: it polls, calls pressure callbacks, and ends requests.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <new>
module gpumem:request_passes.impl;
import :request_passes;
import :deadlock_monitor;
import :frees;
import :holder;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pressure_call;
import :pressure_list;
import :progress_monitor;
import :request_queue;
import :reuse_rules;
import :shard_list;
import :stall_detector;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

void request_passes::run() noexcept {
  call_pressure();
  end_deadlocks();
  poll();
}

void request_passes::call_pressure() noexcept {
  for (;;) {
    pressure_call* next = nullptr;
    {
      all_shards_lock const held{parts_.shards};
      if (monitor_.wanted() > 0) next = monitor_.pressure.begin_next();
    }
    if (!next) return;
    next->post();
  }
}

void request_passes::end_deadlocks() noexcept {
  {
    all_shards_lock const held{parts_.shards};
    monitor_.begin_look();
    if (!parts_.requests.has_waiting()) return;
  }
  deadlock_monitor::get().look();
}

// Most pools have no waiting request, so this does not lock their shards.
void request_passes::show(visitor& to) noexcept {
  if (!parts_.requests.has_waiting()) return;
  all_shards_lock const held{parts_.shards};
  auto const* const first = waiting_.queue.next_waiting();
  if (first && parts_.requests.has_waiting()) to.see(monitor_.state(*first));
}

// The work whose request ends may free memory, so the stall detector counts the end as progress.
void request_passes::end_wait(waiter& item, woken_waiters& woken) noexcept {
  assert_all_shards_held();
  monitor_.stall.count_grant();
  queue_.remove(item, woken);
}

// Polls, and gives a turn to the next request that may succeed now. The pool counts changes, such as frees, after which
// requests may succeed. In a hardened pool, and with `reuse_policy::ordered`, the count does not show that work has
// completed. So in these pools a request tries after each poll. Complete ranges are made ready even if no work is
// pending, since another thread may have seen the work complete.
void request_passes::poll() noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  if (!parts_.requests.has_waiting()) return;
  try {
    deferred_.run(nullptr);
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
  } catch (std::bad_alloc const&) {
    // The host is out of memory: the next pass polls again.
  }
  parts_.rules.promote_completed(parts_.everywhere());
  monitor_.update_work_pending();
  bool const counts_changes = !parts_.options.hardened.enabled && parts_.options.cross_stream != reuse_policy::ordered;
  auto* const next = monitor_.next_to_poll_for();
  if (!next || (counts_changes && waiting_.change_count(*next) == next->seen_changes())) return;
  if (counts_changes) parts_.passes.restart_waiting();
  if (!counts_changes) next->set_seen_changes(0);
  if (parts_.options.hardened.enabled) queue_.give_turn(*next, woken); // its attempt empties the quarantine
  queue_.wake_next(woken);
}

void request_passes::on_holder_event(holder& unit, holder_event what) noexcept {
  if (what == holder_event::begins) return unit.add_place(*this);
  if (what == holder_event::ends) return;
  all_shards_lock const held{parts_.shards};
  monitor_.schedule_poll();
}

void request_passes::add_pressure_call(pressure_call& item) {
  all_shards_lock const held{parts_.shards};
  monitor_.pressure.add(item);
  monitor_.pressure.on_park();
  monitor_.schedule_poll();
}

void request_passes::remove_pressure_call(pressure_call& item) noexcept {
  all_shards_lock const held{parts_.shards};
  monitor_.pressure.remove(item);
  monitor_.schedule_poll();
}

std::size_t request_passes::begin_pressure(pressure_call& call) noexcept {
  all_shards_lock const held{parts_.shards};
  auto const bytes = monitor_.wanted();
  monitor_.pressure.on_begin(call, bytes, waiting_.change_count());
  return bytes;
}

// The function may have freed memory in another resource. If the upstream had refused a request, it may then have
// memory, so the requests try once more.
void request_passes::end_pressure(pressure_call& call, std::size_t freed) noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  monitor_.pressure.on_end(call, freed, waiting_.change_count());
  if (freed > 0 && waiting_.clear_upstream_limit()) {
    parts_.requests.count_change();
    queue_.wake_next(woken);
  }
  monitor_.schedule_poll();
}

} // namespace gpumem::detail
