// The queue of requests that wait: which of them has a turn to try again, and how many bytes are set aside for it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <optional>
module gpumem:request_queue.impl;
import :request_queue;
import :block;
import :chunk_list;
import :device;
import :error;
import :frees;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pressure_list;
import :progress_monitor;
import :range_search;
import :shard_list;
import :stall_detector;
import :stream;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

// Returns why a request that does not wait is refused before it tries; nullopt if it may try. A request that may try
// overtakes all waiting requests, but gets none of the bytes that are set aside for them.
std::optional<outcome> request_queue::refusal_at_admission(allocation_request const& request) noexcept {
  if (parts_.requests.is_closed()) return outcome::closed;
  if (request.key.queues() == queueing::admitted) return std::nullopt;
  if (request.key.queues() == queueing::behind) return outcome::exhausted;
  all_shards_lock const held{parts_.shards};
  if (!waiting_.queue.may_be_overtaken() || waiting_.rounded(request.requested) > waiting_.headroom())
    return outcome::exhausted;
  waiting_.queue.count_overtaking();
  monitor_.stall.count_grant();
  return std::nullopt;
}

void request_queue::wake_next(woken_waiters& woken) noexcept {
  auto const may = [this](waiter const& item) {
    assert_all_shards_held();
    if (waiting_.refusal(item)) return true;
    if (item.has_parts() && multi_part_) return false; // only one request of several parts at a time
    return (item.seen_changes() != waiting_.change_count(item) && waiting_.fits(item)) ||
           waiting_.waits_for_nothing(item);
  };
  while (auto* const next = waiting_.queue.next_for_turn(may)) {
    if (!waiting_.refusal(*next)) waiting_.queue.count_overtaking(next);
    give_turn(*next, woken);
  }
}

void request_queue::wake_ended(woken_waiters& woken) noexcept {
  for (auto* at = waiting_.queue.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && waiting_.refusal(*at)) give_turn(*at, woken);
  }
}

void request_queue::give_turn(waiter& item, woken_waiters& woken) noexcept {
  take_turn(item);
  woken.add(item);
}

void request_queue::take_turn(waiter& item) noexcept {
  waiting_.queue.give_turn(item, waiting_.rounded(item));
  if (item.has_parts()) multi_part_ = &item;
}

request_queue::turn request_queue::new_turn(waiter const& item) noexcept {
  monitor_.update_work_pending();
  return {waiting::turn, waiting_.change_count(item)};
}

// Parks a request (adds it to the queue) so that it misses no free. While requests are parked, all frees look at the
// queue. The first one to be parked then flushes the thread caches, and tries once more. A free in between counts as a
// change, after which the request tries again. A request that can never be met ends.
request_queue::turn request_queue::begin_turn(waiter& item) noexcept {
  bool last = false;
  auto why = outcome::exhausted;
  {
    woken_waiters woken;
    all_shards_lock const held{parts_.shards};
    auto const ends = waiting_.refusal(item);
    if (!ends) return park(item, woken);
    why = *ends;
    if (waiter_list::holds(item)) last = remove(item, woken);
  }
  item.complete(unexpected<failure>{failure_of(item, why)}); // without locks: it calls adaptors
  return {last ? waiting::last : waiting::answered};
}

failure request_queue::failure_of(waiter const& item, outcome why) const noexcept {
  return {why, why == outcome::device_lost ? parts_.backend.where()->lost_error() : 0, item.bytes()};
}

// Parks the request, or gives it a turn.
request_queue::turn request_queue::park(waiter& item, woken_waiters& woken) noexcept {
  if (waiter_list::holds(item)) return new_turn(item);
  bool const first = waiting_.queue.empty();
  if (!waiting_.queue.park(item)) return {waiting::answered};
  parts_.passes.restart_waiting();
  if (!first) {
    monitor_.pressure.on_park();
    wake_next(woken);
    monitor_.schedule_poll();
    return {waiting::parked};
  }
  monitor_.stall.begin();
  parts_.requests.set_waiting(true);
  parts_.mode.set_under_pressure(true); // from now on no block stays in a thread cache
  frees_.flush_thread_caches();
  take_turn(item);
  return new_turn(item);
}

// A limit that was lowered during the turn can make the request too large. A request for which the host has no memory
// ends, since no free would wake it.
request_queue::turn request_queue::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    woken_waiters woken;
    all_shards_lock const held{parts_.shards};
    if (!result && may_wait_after(result.error())) {
      auto const ends = item.cancelled() ? std::optional{item.refusal()} : waiting_.refusal(item);
      if (ends) {
        result = unexpected<failure>{failure_of(item, *ends)};
      } else if (auto const again = wait_again(item, mine, woken); again.what != waiting::answered) {
        return again;
      }
    }
    if (result) monitor_.stall.count_grant();
    last = remove(item, woken);
  }
  item.complete(result);
  return {last ? waiting::last : waiting::answered};
}

// Decides what happens to a refused request. It tries again immediately if the count of changes (such as frees) has
// grown since its turn began. It waits while memory is live, or while work on memory that it could get is not complete.
// Otherwise the request ends. Unless it tries again, the bytes set aside for it may be enough for a later request,
// which then gets a turn.
request_queue::turn request_queue::wait_again(waiter& item, turn const& mine, woken_waiters& woken) noexcept {
  monitor_.update_work_pending();
  // A request of several parts asks for several blocks. If one is refused, it gives the others back, which in a
  // hardened pool would count as changes. So there changes do not count for such a request.
  bool const counts_changes = !(parts_.options.hardened.enabled && item.has_parts());
  if (!counts_changes) monitor_.stall.disregard(waiting_.change_count(item) - mine.since);
  bool const changed = counts_changes && waiting_.change_count(item) != mine.since;
  if (changed && waiting_.fits(item)) return new_turn(item);
  end_turn_of(item);
  // If the pool's limit leaves room for the request, the upstream must have refused it, having fewer bytes left.
  auto const bytes = waiting_.rounded(item);
  bool const upstream_full = parts_.chunks.headroom() >= bytes + item.alignment();
  if (upstream_full && !item.has_parts() && !item.asks_for_turn())
    waiting_.set_upstream_limit(parts_.chunks.reserved() + bytes - granule);
  if (waiting_.waits_for_nothing(item)) {
    ++parts_.shards.shard_of_thread().counts.failures;
    return {waiting::answered};
  }
  if (item.seen_changes() == 0) monitor_.pressure.on_park();
  item.set_seen_changes(counts_changes ? mine.since : waiting_.change_count(item));
  wake_next(woken);
  monitor_.schedule_poll();
  return {waiting::parked};
}

void request_queue::end_turn_of(waiter& item) noexcept {
  waiting_.queue.end_turn(item, waiting_.fits(item));
  if (multi_part_ == &item) multi_part_ = nullptr;
}

expected<void*, failure> request_queue::may_go_on(waiter const& item) noexcept {
  all_shards_lock const held{parts_.shards};
  // An attempt of a hardened pool gets the quarantined memory. A request for a turn makes none.
  bool const tries = parts_.options.hardened.enabled && item.has_parts();
  if (tries || waiting_.fits(item) || (item.asks_for_turn() && waiting_.waits_for_nothing(item))) return nullptr;
  return unexpected<failure>{failure{outcome::exhausted, 0, item.bytes()}};
}

bool request_queue::is_too_large(waiter const& item) noexcept {
  all_shards_lock const held{parts_.shards};
  return waiting_.refusal(item) == outcome::too_large;
}

bool request_queue::cancel(waiter& item, bool& last) noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.is_being_destroyed())) return false;
  last = remove(item, woken);
  return true;
}

bool request_queue::remove(waiter& item, woken_waiters& woken) noexcept {
  waiting_.queue.remove(item);
  if (multi_part_ == &item) multi_part_ = nullptr;
  if (waiting_.queue.empty()) static_cast<void>(waiting_.clear_upstream_limit());
  if (waiting_.queue.empty() && parts_.requests.has_waiting()) parts_.requests.set_waiting(false);
  wake_next(woken);
  monitor_.schedule_poll();
  return waiting_.is_pool_unused();
}

} // namespace gpumem::detail
