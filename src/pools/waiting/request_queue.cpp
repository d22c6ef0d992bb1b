// The queue of requests that wait: which of them has a turn, whether there could be memory for it, and a report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module gpumem:request_queue.impl;
import :request_queue;
import :block;
import :chunk_list;
import :deadlock_monitor;
import :device;
import :error;
import :frees;
import :holder;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pressure_calls;
import :range_search;
import :reuse_rules;
import :shard_list;
import :stream;
import :sync;
import :waiter;

namespace gpumem::detail {

std::size_t waiting_requests::rounded(std::size_t bytes) const noexcept {
  return size_class::of(std::max(bytes, parts_.smallest_block), size_class::largest_small).bytes;
}

std::size_t waiting_requests::block_size(std::size_t bytes, std::size_t alignment) const noexcept {
  return rounded(guards_.total(bytes, alignment));
}

std::size_t waiting_requests::rounded(waiter const& item) const noexcept {
  if (item.asks_for_turn()) return block_size(item.bytes(), granule);
  return item.bytes_by([this](request_part const& each) { return block_size(each.bytes, each.alignment); });
}

std::uint64_t waiting_requests::change_count() const noexcept {
  auto sum = parts_.requests.changes() + returned_parts_;
  for (auto const& each : parts_.shards.all()) sum += each->counters.promoted;
  return sum;
}

std::uint64_t waiting_requests::change_count(waiter const& item) const noexcept {
  return item.has_parts() ? frees_of_others() : change_count();
}

std::size_t waiting_requests::headroom(std::size_t own_bytes) const noexcept {
  auto const capacity = std::min(parts_.backend->capacity(), upstream_limit_);
  auto const reserved = parts_.chunks.reserved();
  auto const free = parts_.shards.free_bytes() + (capacity - std::min(capacity, reserved));
  return free - std::min(free, queue.set_aside() - own_bytes);
}

bool waiting_requests::fits(waiter const& item) const noexcept {
  return rounded(item) <= headroom(waiter_list::bytes_aside(item));
}

// Returns whether memory is live, set aside for another request that tries again, on its way back to the upstream, or
// freed inside a graph capture (a later call completes such a free). A later free may then help the request.
bool waiting_requests::is_held_by_others(waiter const& item) const noexcept {
  bool const set_aside = queue.set_aside() > waiter_list::bytes_aside(item);
  return parts_.shards.live_blocks() > 0 || has_deferred_frees() || set_aside || parts_.backend->is_releasing();
}

std::optional<outcome> waiting_requests::refusal(waiter const& item) const noexcept {
  if (parts_.requests.is_closed()) return outcome::closed;
  if (parts_.lost()) return outcome::device_lost;
  return could_serve(item) ? std::nullopt : std::optional{outcome::too_large};
}

// Returns whether the pool could hold each of the request's blocks, and all of them at once.
bool waiting_requests::could_serve(waiter const& item) const noexcept {
  if (item.asks_for_turn()) return true;
  for (std::size_t i = 0; i < item.parts(); ++i) {
    auto const& one = item.part(i);
    if (!parts_.backend->could_hold(block_size(one.bytes, one.alignment), one.alignment)) return false;
  }
  return rounded(item) <= parts_.backend->capacity();
}

bool waiting_requests::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held_by_others(item) && !(fits(item) && reuse_rules::may_complete(parts_.shards.everywhere()));
}

bool waiting_requests::is_pool_unused() const noexcept {
  return parts_.mode.no_handles() && parts_.shards.live_blocks() == 0 && queue.empty();
}

// Returns why a request that does not wait is refused before it tries; nullopt if it may try. A request that may try
// overtakes all waiting requests, but gets none of the bytes that are set aside for them.
std::optional<outcome> request_queue::refusal_at_admission(allocation_request const& request) noexcept {
  if (parts_.requests.is_closed()) return outcome::closed;
  if (request.key.context().queues() == queueing::admitted) return std::nullopt;
  if (request.key.context().is_behind()) return outcome::exhausted;
  all_shards_lock const lock{parts_.shards};
  if (!requests_.queue.may_be_overtaken() || requests_.rounded(request.requested) > requests_.headroom())
    return outcome::exhausted;
  requests_.queue.count_overtaking();
  monitor_.stall.count_grant();
  return std::nullopt;
}

void request_queue::wake_next(woken_waiters& waiters) noexcept {
  auto const may = [this](waiter& item) {
    assert_all_shards_held();
    requests_.queue.update(item);
    if (requests_.refusal(item)) return true;
    if (item.has_parts() && multi_part_) return false; // only one request of several parts at a time
    return (item.seen_changes() != requests_.change_count(item) && requests_.fits(item)) ||
           requests_.waits_for_nothing(item);
  };
  while (auto* const next = requests_.queue.next_for_turn(may)) {
    if (!requests_.refusal(*next)) requests_.queue.count_overtaking(next);
    give_turn(*next, waiters);
  }
}

void request_queue::wake_ended(woken_waiters& waiters) noexcept {
  for (auto* at = requests_.queue.first(); at; at = waiter_list::after(*at)) {
    if (waiter_list::has_turn(*at)) continue;
    requests_.queue.update(*at);
    if (requests_.refusal(*at)) give_turn(*at, waiters);
  }
}

// A request that lacks nothing overtakes all others, since it takes nothing from them.
void request_queue::wake_satisfied() noexcept {
  if (!parts_.requests.has_waiting()) return;
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  if (!requests_.queue.has_lacks()) return;
  for (auto* at = requests_.queue.first(); at; at = waiter_list::after(*at)) {
    if (waiter_list::has_turn(*at)) continue;
    requests_.queue.update(*at);
    if (at->lacks_nothing()) give_turn(*at, waiters);
  }
  wake_next(waiters);
}

void request_queue::give_turn(waiter& item, woken_waiters& waiters) noexcept {
  take_turn(item);
  waiters.add(item);
}

void request_queue::take_turn(waiter& item) noexcept {
  requests_.queue.give_turn(item, requests_.rounded(item));
  if (item.has_parts()) multi_part_ = &item;
}

request_queue::turn request_queue::new_turn(waiter const& item) noexcept {
  monitor_.update_work_pending();
  return {waiting::turn, requests_.change_count(item)};
}

// Parks a request (adds it to the queue) so that it misses no free. While requests are parked, all frees look at the
// queue. The first one to be parked then flushes the thread caches, and tries once more. A free in between counts as a
// change, after which the request tries again. A request that can never be met ends.
request_queue::turn request_queue::begin_turn(waiter& item) noexcept {
  bool last = false;
  auto reason = outcome::exhausted;
  {
    woken_waiters waiters;
    all_shards_lock const lock{parts_.shards};
    auto const ends = requests_.refusal(item);
    if (!ends) return park(item, waiters);
    reason = *ends;
    count_failure(item);
    if (waiter_list::holds(item)) last = remove(item, waiters);
  }
  item.complete(unexpected<failure>{failure_of(item, reason)}); // without locks: it calls adaptors
  return {last ? waiting::last : waiting::answered};
}

void request_queue::refuse_as_too_large(waiter& item) noexcept {
  {
    all_shards_lock const lock{parts_.shards};
    count_failure(item);
  }
  item.complete(unexpected<failure>{failure_of(item, outcome::too_large)});
}

failure request_queue::failure_of(waiter const& item, outcome reason) const noexcept {
  return {reason, reason == outcome::device_lost ? parts_.where->lost_error() : 0, item.bytes()};
}

// Parks the request, or gives it a turn.
request_queue::turn request_queue::park(waiter& item, woken_waiters& waiters) noexcept {
  if (waiter_list::holds(item)) return new_turn(item);
  bool const first = requests_.queue.empty();
  if (!requests_.queue.park(item)) {
    count_failure(item);
    return {waiting::answered};
  }
  parts_.passes.restart_waiting();
  requests_.queue.update(item);
  if (!first && !item.lacks_nothing()) {
    monitor_.pressure.on_park();
    wake_next(waiters);
    monitor_.schedule_poll();
    return {waiting::parked};
  }
  if (first) {
    monitor_.stall.begin();
    parts_.requests.set_waiting(true);
    parts_.mode.set_under_pressure(true); // from now on no block stays in a thread cache
    frees_.flush_thread_caches();
  }
  take_turn(item);
  return new_turn(item);
}

// A limit that was lowered during the turn can make the request too large. A request for which the host has no memory
// ends, since no free would wake it.
request_queue::turn request_queue::end_turn(waiter& item, turn const& turn, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    woken_waiters waiters;
    all_shards_lock const lock{parts_.shards};
    if (!result && may_wait_after(result.error())) {
      auto const ends = item.cancelled() ? std::optional{item.refusal()} : requests_.refusal(item);
      if (ends) {
        result = unexpected<failure>{failure_of(item, *ends)};
      } else if (auto const again = wait_again(item, turn, waiters); again.what != waiting::answered) {
        return again;
      }
    }
    result ? monitor_.stall.count_grant() : count_failure(item);
    last = remove(item, waiters);
  }
  item.complete(result);
  return {last ? waiting::last : waiting::answered};
}

// Decides what happens to a refused request. It tries again immediately if the count of changes (such as frees) has
// grown since its turn began. It waits while memory is live, or while work on memory that it could get is not complete.
// Otherwise the request ends. Unless it tries again, the bytes set aside for it may be enough for a later request,
// which then gets a turn.
request_queue::turn request_queue::wait_again(waiter& item, turn const& turn, woken_waiters& waiters) noexcept {
  monitor_.update_work_pending();
  // A request of several parts asks for several blocks. If one is refused, it gives the others back, which in a
  // hardened pool would count as changes. So there changes do not count for such a request.
  bool const counts_changes = !(parts_.options.hardened.enabled && item.has_parts());
  if (!counts_changes) monitor_.stall.disregard(requests_.change_count(item) - turn.since);
  bool const changed = counts_changes && requests_.change_count(item) != turn.since;
  if (changed && requests_.fits(item)) return new_turn(item);
  end_turn_of(item);
  auto const bytes = requests_.rounded(item); // for which the attempt asked
  auto const lacked = item.bytes();
  requests_.queue.update(item);
  // Another request may have been granted during the turn, which wakes none that has a turn.
  if (item.bytes() < lacked && item.lacks_nothing()) {
    take_turn(item);
    return new_turn(item);
  }
  // If the pool's limit leaves room for the request, the upstream must have refused it, having fewer bytes left.
  bool const upstream_full = parts_.chunks.headroom() >= bytes + item.alignment();
  if (upstream_full && !item.has_parts() && !item.asks_for_turn())
    requests_.set_upstream_limit(parts_.chunks.reserved() + bytes - granule);
  if (requests_.waits_for_nothing(item)) return {waiting::answered};
  if (item.seen_changes() == 0) monitor_.pressure.on_park();
  item.set_seen_changes(counts_changes ? turn.since : requests_.change_count(item));
  wake_next(waiters);
  monitor_.schedule_poll();
  return {waiting::parked};
}

void request_queue::end_turn_of(waiter& item) noexcept {
  requests_.queue.end_turn(item, requests_.fits(item));
  if (multi_part_ == &item) multi_part_ = nullptr;
}

expected<void*, failure> request_queue::may_go_on(waiter const& item) noexcept {
  all_shards_lock const lock{parts_.shards};
  // An attempt of a hardened pool gets the quarantined memory. A request for a turn makes none.
  bool const tries = parts_.options.hardened.enabled && item.has_parts();
  if (tries || requests_.fits(item) || (item.asks_for_turn() && requests_.waits_for_nothing(item))) return nullptr;
  return unexpected<failure>{failure{outcome::exhausted, 0, item.bytes()}};
}

bool request_queue::is_too_large(waiter const& item) noexcept {
  all_shards_lock const lock{parts_.shards};
  return requests_.refusal(item) == outcome::too_large;
}

bool request_queue::cancel(waiter& item, bool& last) noexcept {
  woken_waiters waiters;
  all_shards_lock const lock{parts_.shards};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.is_being_destroyed())) return false;
  count_failure(item);
  last = remove(item, waiters);
  return true;
}

// A request that asks only for a turn asks for no memory.
void request_queue::count_failure(waiter const& item) noexcept {
  if (item.asks_for_turn()) return;
  ++parts_.shards.shard_of_thread().counts.failures;
  failures_.fetch_add(1, std::memory_order_relaxed);
}

bool request_queue::remove(waiter& item, woken_waiters& waiters) noexcept {
  requests_.queue.remove(item);
  if (multi_part_ == &item) multi_part_ = nullptr;
  if (requests_.queue.empty()) static_cast<void>(requests_.clear_upstream_limit());
  if (requests_.queue.empty() && parts_.requests.has_waiting()) parts_.requests.set_waiting(false);
  wake_next(waiters);
  monitor_.schedule_poll();
  return requests_.is_pool_unused();
}

namespace {

std::string bytes_text(std::size_t count) { return std::to_string(count) + " bytes"; }

// `bytes`: those that the holder has in the pool as its own.
std::string holder_text(holder& unit, std::size_t bytes, bool asks) {
  auto text = "'" + unit.name() + "' holds " + bytes_text(bytes + unit.nested());
  if (unit.parent()) text += ", which another scope counts as well";
  if (asks) text += "; it waits for memory";
  if (unit.is_marked()) text += "; it waits for something else";
  if (unit.rolls_back_with()) text += "; it can be rolled back";
  return text;
}

std::string request_text(std::size_t bytes, sync::duration waited, std::string const& owner, int priority) {
  auto const time = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return "a request for " + bytes_text(bytes) + " waits for " + std::to_string(time) + " ms; of " + owner +
         "; priority " + std::to_string(priority);
}

std::string waiter_text(waiter const& item, sync::time_point now) {
  auto const of = item.holder() ? "'" + item.holder()->name() + "'" : std::string{"no scope"};
  auto const text = request_text(item.bytes(), now - waiter_list::waits_since(item), of, item.priority());
  return waiter_list::has_turn(item) ? text + "; it has a turn" : text;
}

} // namespace

waiting_statistics request_queue::read_statistics() noexcept {
  all_shards_lock const lock{parts_.shards};
  return requests_.queue.read_statistics();
}

std::string request_queue::describe(waiting_place const& place, std::size_t live) {
  auto const now = sync::now();
  std::vector<std::pair<std::size_t, std::string>> holding;
  std::vector<holder const*> asking;
  std::string lines;
  std::size_t requests = 0, outside = live;
  {
    all_shards_lock const lock{parts_.shards};
    for (auto const* at = requests_.queue.first(); at; at = waiter_list::after(*at)) {
      ++requests;
      lines += "\ngpumem:   " + waiter_text(*at, now);
      for (auto const* unit = at->holder(); unit; unit = unit->parent()) asking.push_back(unit);
    }
  }
  auto& monitor = deadlock_monitor::get();
  for (auto const& each : monitor.parked_before(place))
    lines += "\ngpumem:   " + request_text(each.bytes, now - each.since, "'" + each.holder + "'", each.priority) +
             "; in front of the pool";
  monitor.visit(place, [&](holder& each, std::size_t bytes, bool waits) {
    outside -= std::min(outside, bytes);
    bool const asks = waits || std::ranges::find(asking, &each) != asking.end();
    holding.emplace_back(bytes + each.nested(), "\ngpumem:   " + holder_text(each, bytes, asks));
  });
  std::ranges::sort(holding, std::greater{}, &std::pair<std::size_t, std::string>::first);
  auto text = "gpumem: " + parts_.options.name + ": " + std::to_string(requests) + " requests wait; " +
              bytes_text(live) + " are live, " + std::to_string(outside) + " of them outside scopes";
  for (auto const& each : holding) text += each.second;
  return text + lines;
}

} // namespace gpumem::detail
