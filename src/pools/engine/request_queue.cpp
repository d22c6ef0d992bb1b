// The queue of requests that wait: which of them has a turn, and how many bytes are set aside for it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
module gpumem:request_queue.impl;
import :request_queue;
import :allocation_request;
import :block;
import :error;
import :holder;
import :pool_backend;
import :pool_options;
import :pool_parts;
import :pressure_list;
import :reuse_rules;
import :shard_list;
import :size_class;
import :stall_detector;
import :stream;
import :sync;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {
namespace {

// Rounds as for a request for which the pool cannot grow: only small sizes are rounded to a size class.
std::size_t rounded(std::size_t bytes) noexcept { return size_class::of(bytes, size_class::largest_small).bytes; }

} // namespace

std::size_t request_queue::rounded(waiter const& item) noexcept {
  return item.bytes_by([](std::size_t each) { return detail::rounded(each); });
}

// A request that does not wait overtakes all that do. It gets none of the bytes that are set aside for them.
std::optional<outcome> request_queue::refusal_at_admission(allocation_request const& request) noexcept {
  if (is_closed()) return outcome::closed;
  if (request.key.queues() == queueing::admitted) return std::nullopt;
  if (request.key.queues() == queueing::behind) return outcome::exhausted;
  all_shards_lock const held{parts_.shards};
  if (!queue_.may_be_overtaken() || detail::rounded(request.requested) > headroom()) return outcome::exhausted;
  queue_.count_overtaking();
  stall_.count_grant();
  return std::nullopt;
}

// Returns a count of changes that may let a refused request go on: it grows with each free and each promoted range.
std::uint64_t request_queue::change_count() const noexcept {
  auto sum = changes_ + returned_parts_;
  for (auto const& each : parts_.shards.all()) sum += each->counters.promoted;
  return sum;
}

std::uint64_t request_queue::change_count(waiter const& item) const noexcept {
  return item.has_parts() ? frees_of_others() : change_count();
}

// Returns the count of changes without the parts that requests of several blocks have given back.
std::uint64_t request_queue::frees_of_others() const noexcept { return change_count() - returned_parts_; }

// Returns the bytes that are free or could be reserved, less those set aside for requests other than `its_own`.
std::size_t request_queue::headroom(std::size_t its_own) const noexcept {
  auto const unit = parts_.backend.paged() ? smallest_page : granule;
  auto const capacity = std::min(parts_.backend.chunks().max_reserved() / unit * unit, upstream_limit_);
  auto const reserved = parts_.backend.chunks().reserved();
  auto const free = parts_.free_bytes() + (capacity - std::min(capacity, reserved));
  return free - std::min(free, queue_.set_aside() - its_own);
}

bool request_queue::fits(waiter const& item) const noexcept {
  auto const bytes = rounded(item);
  return bytes <= headroom(waiter_list::has_turn(item) ? bytes : 0);
}

// Returns whether memory is granted, or is about to be.
bool request_queue::is_held() const noexcept {
  return parts_.live_blocks() > 0 || owner_.has_deferred_frees() || queue_.set_aside() > 0;
}

// Returns whether the request can no longer be met.
bool request_queue::ends(waiter const& item) const noexcept {
  auto const limit = parts_.backend.chunks().limit();
  return is_closed() || parts_.backend.lost() || (limit && item.bytes() > limit);
}

// Returns whether nothing is left for which the request could wait.
bool request_queue::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held() && !(fits(item) && reuse_rules::may_complete(parts_.everywhere()));
}

void request_queue::wake_next(woken_waiters& woken) noexcept {
  auto const may = [this](waiter const& item) {
    if (ends(item)) return true;
    if (item.has_parts() && multi_part_) return false; // one such request at a time: see return_part
    return (item.seen_changes() != change_count(item) && fits(item)) || waits_for_nothing(item);
  };
  while (auto* const next = queue_.next_for_turn(may)) {
    if (!ends(*next)) queue_.count_overtaking(next);
    give_turn(*next, woken);
  }
}

void request_queue::wake_ended(woken_waiters& woken) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && ends(*at)) give_turn(*at, woken);
  }
}

void request_queue::give_turn(waiter& item, woken_waiters& woken) noexcept {
  take_turn(item);
  woken.add(item);
}

void request_queue::take_turn(waiter& item) noexcept {
  queue_.give_turn(item, rounded(item));
  if (item.has_parts()) multi_part_ = &item;
}

request_queue::turn request_queue::new_turn(waiter const& item) noexcept {
  update_work_pending();
  return {waiting::turn, change_count(item)};
}

void request_queue::notify() noexcept {
  if (!has_waiting()) return;
  ++changes_;
  owner_.schedule_pass();
}

// Parks a request (O11) in three steps: all frees begin to look at the queue, the thread caches are flushed, and the
// request tries once more. A free in between counts as a change.
request_queue::turn request_queue::begin_turn(waiter& item) noexcept {
  woken_waiters woken;
  all_shards_lock held{parts_.shards};
  if (waiter_list::holds(item)) return new_turn(item);
  if (is_closed()) {
    held.unlock(); // complete() informs adaptors
    item.complete(unexpected<failure>{failure{outcome::closed, 0, item.bytes()}});
    return {waiting::answered};
  }
  bool const first = queue_.empty();
  if (!queue_.park(item)) return {waiting::answered};
  waiting_passes_ = 0;
  if (!first) {
    pressure_list_.on_park();
    wake_next(woken);
    schedule_poll();
    return {waiting::parked};
  }
  stall_.begin();
  admission_.store(admission::queue, std::memory_order_relaxed);
  owner_.on_first_waiter();
  take_turn(item);
  return new_turn(item);
}

request_queue::turn request_queue::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    woken_waiters woken;
    all_shards_lock const held{parts_.shards};
    if (!result && result.error().reason == outcome::exhausted) {
      if (item.cancelled()) {
        result = unexpected<failure>{failure{item.refusal(), 0, item.bytes()}};
      } else if (auto const again = wait_again(item, mine, woken); again.what != waiting::answered) {
        return again;
      }
    }
    if (result) stall_.count_grant();
    last = remove_waiter(item, woken);
  }
  item.complete(result);
  return {last ? waiting::last : waiting::answered};
}

// Decides what a refused request does. It tries again at once if the count of changes has grown since its turn began.
// It waits while memory is granted, or while the work for which it waits is not complete. Otherwise it ends. The bytes
// that were set aside for it may be enough for a later request.
request_queue::turn request_queue::wait_again(waiter& item, turn const& mine, woken_waiters& woken) noexcept {
  update_work_pending();
  // In a hardened pool, the parts that such a request gives back would count as changes.
  bool const counts_changes = !(parts_.options.hardened.enabled && item.has_parts());
  if (!counts_changes) stall_.disregard(change_count(item) - mine.since);
  bool const changed = counts_changes && change_count(item) != mine.since;
  if (changed && (is_closed() || fits(item))) return new_turn(item);
  end_turn_of(item);
  // If the limit leaves room for the request, the upstream has refused it: fewer bytes are left there.
  auto const bytes = rounded(item);
  bool const upstream_full = parts_.backend.chunks().headroom() >= bytes + item.alignment();
  if (upstream_full && !item.has_parts()) upstream_limit_ = parts_.backend.chunks().reserved() + bytes - granule;
  if (waits_for_nothing(item)) {
    ++parts_.shards.shard_of_thread().counts.failures;
    return {waiting::answered};
  }
  if (item.seen_changes() == 0) pressure_list_.on_park();
  item.set_seen_changes(counts_changes ? mine.since : change_count(item));
  wake_next(woken);
  schedule_poll();
  return {waiting::parked};
}

void request_queue::end_turn_of(waiter& item) noexcept {
  queue_.end_turn(item, fits(item));
  if (multi_part_ == &item) multi_part_ = nullptr;
}

expected<void*, failure> request_queue::may_go_on(waiter const& item) noexcept {
  all_shards_lock const held{parts_.shards};
  if (is_closed()) return unexpected<failure>{failure{outcome::closed, 0, item.bytes()}};
  if (parts_.backend.lost())
    return unexpected<failure>{failure{outcome::device_lost, parts_.backend.where()->lost_error(), item.bytes()}};
  auto const limit = parts_.backend.chunks().limit();
  bool const too_large = limit && rounded(item) > limit;
  bool const tries = parts_.options.hardened.enabled && item.has_parts(); // an attempt empties the quarantine
  if (!too_large && (tries || fits(item))) return nullptr;
  return unexpected<failure>{failure{too_large ? outcome::too_large : outcome::exhausted, 0, item.bytes()}};
}

bool request_queue::cancel(waiter& item, bool& last) noexcept {
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.is_being_destroyed())) return false;
  last = remove_waiter(item, woken);
  return true;
}

// Removes a request, after which others may have queued, and wakes those. Returns whether the pool is unused now.
bool request_queue::remove_waiter(waiter& item, woken_waiters& woken) noexcept {
  queue_.remove(item);
  if (multi_part_ == &item) multi_part_ = nullptr;
  if (queue_.empty()) upstream_limit_ = SIZE_MAX;
  if (queue_.empty() && has_waiting()) admission_.store(admission::open, std::memory_order_relaxed);
  wake_next(woken);
  schedule_poll();
  return owner_.is_unused();
}

} // namespace gpumem::detail
