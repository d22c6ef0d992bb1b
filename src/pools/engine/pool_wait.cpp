// Requests that wait: which of them has a turn, what is set aside for it, and which end so that others go on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
module gpumem:pool_wait.impl;
import :allocation_request;
import :block;
import :cuda;
import :error;
import :holder;
import :pool_backend;
import :pool_engine;
import :pool_options;
import :reuse_rules;
import :shard_list;
import :size_class;
import :stream;
import :sync;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {
namespace {

// As for a request that cannot grow.
std::size_t rounded(std::size_t bytes) noexcept { return size_class::of(bytes, size_class::largest_small).bytes; }
std::size_t rounded(waiter const& item) noexcept {
  return item.bytes_by([](std::size_t each) { return rounded(each); });
}

} // namespace

// A request that does not queue overtakes all that wait. It gets nothing of what is set aside for others.
std::optional<outcome> pool_engine::refusal_at_admission(allocation_request const& request) noexcept {
  if (is_closed()) return outcome::closed;
  if (request.key.queues() == queueing::admitted) return std::nullopt;
  if (request.key.queues() == queueing::behind) return outcome::exhausted;
  all_shards_lock const held{shards_};
  if (!queue_.may_be_overtaken() || rounded(request.requested) > headroom()) return outcome::exhausted;
  queue_.count_overtaking();
  ++grants_;
  return std::nullopt;
}

// What may let a request go on that was refused: grows with each free, and with what is found complete.
std::uint64_t pool_engine::change_count() const noexcept {
  auto sum = changes_ + returned_parts_;
  for (auto const& each : shards_.all()) sum += each->counters.promoted;
  return sum;
}

std::uint64_t pool_engine::change_count(waiter const& item) const noexcept {
  return item.has_parts() ? change_count() - returned_parts_ : change_count();
}

// Bytes that there could be, beside what is set aside.
std::size_t pool_engine::headroom(std::size_t its_own) const noexcept {
  auto const unit = backend_.paged() ? smallest_page : granule;
  auto const capacity = std::min(backend_.chunks().max_reserved() / unit * unit, upstream_limit_);
  auto const reserved = backend_.chunks().reserved();
  auto const free = free_bytes() + (capacity - std::min(capacity, reserved));
  return free - std::min(free, queue_.set_aside() - its_own);
}

bool pool_engine::fits(waiter const& item) const noexcept {
  auto const bytes = rounded(item);
  return bytes <= headroom(waiter_list::has_turn(item) ? bytes : 0);
}

// Whether memory is granted, or is about to be.
bool pool_engine::is_held() const noexcept { return live_blocks() > 0 || deferred_ || queue_.set_aside() > 0; }

// Whether the request cannot be met any more.
bool pool_engine::ends(waiter const& item) const noexcept {
  auto const limit = backend_.chunks().limit();
  return is_closed() || lost() || (limit && item.bytes() > limit);
}

// Whether nothing is left that the request could wait for.
bool pool_engine::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held() && !(fits(item) && reuse_rules::may_complete(everywhere()));
}

// As long as there could be memory for the next. A request that cannot be met any more is called to be told so.
void pool_engine::wake_next(woken_waiters& woken) noexcept {
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

// After the limit has changed, and where the pool is closed.
void pool_engine::wake_ended(woken_waiters& woken) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && ends(*at)) give_turn(*at, woken);
  }
}

void pool_engine::give_turn(waiter& item, woken_waiters& woken) noexcept {
  take_turn(item);
  woken.add(item);
}

void pool_engine::take_turn(waiter& item) noexcept {
  queue_.give_turn(item, rounded(item));
  if (item.has_parts()) multi_part_ = &item;
}

pool_engine::turn pool_engine::new_turn(waiter const& item) noexcept {
  update_work_pending();
  return {waiting::turn, change_count(item)};
}

// For calls that cannot call waiters themselves, since they go on for long.
void pool_engine::notify_waiters() noexcept {
  if (!has_waiting()) return;
  ++changes_;
  schedule_pass();
}

// To park (O11): first all frees are told to look at the queue, then what threads have kept is taken out, and then the
// request tries once more. What is freed in between counts as news.
pool_engine::turn pool_engine::begin_turn(waiter& item) noexcept {
  woken_waiters woken;
  all_shards_lock held{shards_};
  if (waiter_list::holds(item)) return new_turn(item);
  if (is_closed()) {
    held.unlock(); // adaptors are told of it
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
  quiet_since_ = sync::now();
  admission_.store(admission::queue, std::memory_order_relaxed);
  set_under_pressure(true);
  flush_thread_caches();
  take_turn(item);
  return new_turn(item);
}

pool_engine::turn pool_engine::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    woken_waiters woken;
    all_shards_lock const held{shards_};
    if (!result && result.error().reason == outcome::exhausted) {
      if (item.cancelled()) {
        result = unexpected<failure>{failure{item.refusal(), 0, item.bytes()}};
      } else if (auto const again = wait_again(item, mine, woken); again.what != waiting::answered) {
        return again;
      }
    }
    grants_ += result.has_value();
    last = remove_waiter(item, woken);
  }
  item.complete(result);
  return {last ? waiting::last : waiting::answered};
}

// After a refusal. It tries again at once if something is new since its turn began; it waits if others have memory, or
// if what it lacks is that work completes. What was set aside for it may be enough for a later request.
pool_engine::turn pool_engine::wait_again(waiter& item, turn const& mine, woken_waiters& woken) noexcept {
  update_work_pending();
  // What such a request gives back of a hardened pool looks like news.
  bool const counts_changes = !(options_.hardened.enabled && item.has_parts());
  if (!counts_changes) vain_ += change_count(item) - mine.since;
  bool const changed = counts_changes && change_count(item) != mine.since;
  if (changed && (is_closed() || fits(item))) return new_turn(item);
  end_turn_of(item);
  // Not the limit refused it: upstream has less than that left.
  auto const bytes = rounded(item);
  bool const upstream_full = backend_.chunks().headroom() >= bytes + item.alignment();
  if (upstream_full && !item.has_parts()) upstream_limit_ = backend_.chunks().reserved() + bytes - granule;
  if (waits_for_nothing(item)) {
    ++shards_.shard_of_thread().counts.failures;
    return {waiting::answered};
  }
  if (item.seen_changes() == 0) pressure_list_.on_park();
  item.set_seen_changes(counts_changes ? mine.since : change_count(item));
  wake_next(woken);
  schedule_poll();
  return {waiting::parked};
}

void pool_engine::end_turn_of(waiter& item) noexcept {
  queue_.end_turn(item, fits(item));
  if (multi_part_ == &item) multi_part_ = nullptr;
}

void pool_engine::return_part(stream_key const& key, void* pointer) noexcept {
  all_shards_lock const held{shards_};
  auto const before = changes_;
  auto& freed = *shards_.find_live(pointer).that;
  finish_free(freed, {key, pointer, std::nullopt, {&key.timeline(), end_use(key, &freed, std::nullopt)}},
              *freed.parent->shard);
  returned_parts_ += changes_ - before;
  changes_ = before;
}

expected<void*, failure> pool_engine::may_go_on(waiter const& item) noexcept {
  all_shards_lock const held{shards_};
  if (is_closed()) return unexpected<failure>{failure{outcome::closed, 0, item.bytes()}};
  if (lost()) return unexpected<failure>{failure{outcome::device_lost, where()->lost_error(), item.bytes()}};
  auto const limit = backend_.chunks().limit();
  bool const too_large = limit && rounded(item) > limit;
  bool const tries = options_.hardened.enabled && item.has_parts(); // which empties the quarantine
  if (!too_large && (tries || fits(item))) return nullptr;
  return unexpected<failure>{failure{too_large ? outcome::too_large : outcome::exhausted, 0, item.bytes()}};
}

bool pool_engine::cancel_waiter(waiter& item, bool& last) noexcept {
  woken_waiters woken;
  all_shards_lock const held{shards_};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.is_being_destroyed())) return false;
  last = remove_waiter(item, woken);
  return true;
}

// It may have been what the others waited behind. Whether it was the last user of the pool.
bool pool_engine::remove_waiter(waiter& item, woken_waiters& woken) noexcept {
  queue_.remove(item);
  if (multi_part_ == &item) multi_part_ = nullptr;
  if (queue_.empty()) upstream_limit_ = SIZE_MAX;
  if (queue_.empty() && has_waiting()) admission_.store(admission::open, std::memory_order_relaxed);
  wake_next(woken);
  schedule_poll();
  return is_unused();
}

void pool_engine::refuse_requests() noexcept {
  woken_waiters woken;
  all_shards_lock const held{shards_};
  close_admission(woken);
}

void pool_engine::close_admission(woken_waiters& woken) noexcept {
  admission_.store(admission::closed, std::memory_order_relaxed);
  update_mode();
  flush_thread_caches();
  ++changes_;
  wake_ended(woken);
}

// Where nothing is known to be in use any more, this is news, whichever call has seen it complete.
bool pool_engine::update_work_pending() noexcept {
  bool const open = is_work_pending();
  changes_ += work_was_pending_ && !open;
  work_was_pending_ = open;
  return open;
}

// Whether some stream's use of free memory is not known to be over.
bool pool_engine::is_work_pending() const noexcept {
  if (reuse_rules::may_complete(everywhere())) return true;
  try {
    return !reuse_rules::streams_in_use(false, everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

// The request that may lack nothing but that work completes, for which only the library thread looks, or null.
waiter* pool_engine::next_to_poll_for() noexcept {
  if (!has_waiting()) return nullptr;
  if (options_.hardened.enabled || deferred_) return queue_.next_waiting();
  return queue_.next_for_turn([this](waiter const& item) { return fits(item); });
}

bool pool_engine::needs_poll() noexcept {
  auto const* const next = next_to_poll_for();
  if (!next) return false;
  bool const open = update_work_pending();
  return options_.hardened.enabled || deferred_ || change_count(*next) != next->seen_changes() || open;
}

// Whether all memory could be held by work that waits, as far as is known without a look at it.
bool pool_engine::may_stall() const noexcept {
  return has_waiting() && queue_.set_aside() == 0 && (queue_.has_holders() || holders_.has_marked());
}

// By the library thread: at what completes, for others that could free memory, and whether the queue has stalled.
void pool_engine::schedule_poll() noexcept {
  if (!has_waiting()) return;
  if (may_stall() || needs_poll() || pressure_is_due()) schedule_pass();
  watch_for_stall();
}

// The request that ends so that others can go on, or null. Older work does not wait for younger work that waits itself
// and can be rolled back: the youngest give way until there is enough. Otherwise a request ends only if all memory is
// held by work that waits, or nothing has happened for long. Wound-wait: Rosenkrantz, Stearns, Lewis, "System level
// concurrency control for distributed database systems" (1978).
waiter* pool_engine::next_to_abort() noexcept {
  auto* const first = queue_.next_waiting();
  if (!first || !has_waiting() || deferred_ || backend_.growing() || pressure_list_.pending()) return nullptr;
  if (fits(*first) && (change_count(*first) != first->seen_changes() || reuse_rules::may_complete(everywhere())))
    return nullptr;
  auto const yielding = queue_.find_yielding(*first);
  // Bytes that were enough and did not serve it are in pieces.
  auto const needed = rounded(*first), coming = preempted_ + (fits(*first) ? 0 : headroom());
  bool const enough = needed <= headroom() + preempted_ + yielding.held;
  if (yielding.last && needed > coming && enough) return yielding.last;
  if (queue_.set_aside() > 0) return nullptr;
  auto held = queue_.held_by_parked([](holder const& each) { return holder_list::is_marked(each); });
  holders_.visit_marked([&](holder const& each) { held += each.held(); });
  if ((held == 0 || held != live_bytes()) && !has_stalled()) return nullptr;
  if (yielding.last) return yielding.last;
  auto* const last = queue_.last_with_memory();
  return last ? last : first;
}

// By the library thread. The work whose request ends goes on, and counts as work that may free memory.
bool pool_engine::abort_one() noexcept {
  waiter* ended = nullptr;
  auto why = outcome::stalled;
  {
    woken_waiters woken;
    all_shards_lock const held{shards_};
    ended = next_to_abort();
    if (!ended) return false;
    auto* const work = ended->holder();
    if (work && work->may_roll_back() && ended != queue_.next_waiting()) {
      why = outcome::preempted;
      preempted_ += work->preempt(ended->bytes());
    }
    ++grants_;
    remove_waiter(*ended, woken);
  }
  ended->refuse(failure{why, 0, ended->bytes()});
  return true;
}

void pool_engine::on_holder_event(holder& unit, holder_event what) noexcept {
  if (what == holder_event::begins) return holders_.add(unit);
  if (what == holder_event::ends) return holders_.remove(unit);
  all_shards_lock const held{shards_};
  if (what == holder_event::waits) holders_.mark(unit);
  if (what == holder_event::resumes) holders_.unmark(unit);
  if (what == holder_event::rolled_back) preempted_ -= unit.end_giving_way();
  schedule_poll();
}

// By the library thread. Where nothing tells whether something is new the request tries each time. It looks even if
// nothing is open any more: another thread may have seen the work complete.
void pool_engine::poll_for_waiters() noexcept {
  woken_waiters woken;
  all_shards_lock const held{shards_};
  if (!has_waiting()) return;
  try {
    run_deferred_frees();
    rules_.poll_streams(nullptr, everywhere());
  } catch (std::bad_alloc const&) {
    // The next look may have the host's memory.
  }
  rules_.promote_completed(everywhere());
  update_work_pending();
  bool const counts_changes = !options_.hardened.enabled && options_.cross_stream != reuse_policy::ordered;
  auto* const next = next_to_poll_for();
  if (!next || (counts_changes && change_count(*next) == next->seen_changes())) return;
  if (counts_changes) waiting_passes_ = 0;
  if (!counts_changes) next->set_seen_changes(0);
  if (options_.hardened.enabled) give_turn(*next, woken); // a request that tries empties the quarantine
  wake_next(woken);
}

} // namespace gpumem::detail
