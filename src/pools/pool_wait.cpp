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
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :cuda;
import :error;
import :holder;
import :pool_request;
import :pressure;
import :shards;
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
std::optional<outcome> pool_engine::refusal_at_door(pool_request const& what) noexcept {
  if (is_shut()) return outcome::closed;
  if (what.key.queues() == queueing::admitted) return std::nullopt;
  if (what.key.queues() == queueing::behind) return outcome::exhausted;
  shard_locks const held{shards_};
  if (!queue_.may_be_overtaken() || rounded(what.requested) > room()) return outcome::exhausted;
  queue_.count_overtaking();
  ++grants_;
  return std::nullopt;
}

// What may let a request go on that was refused: grows with each free, and with what is found complete.
std::uint64_t pool_engine::news() const noexcept {
  auto sum = changes_ + given_back_;
  for (auto const& each : shards_.all()) sum += each->paths.completed;
  return sum;
}

std::uint64_t pool_engine::news(waiter const& item) const noexcept {
  return item.has_parts() ? news() - given_back_ : news();
}

// Bytes that there could be, beside what is set aside.
std::size_t pool_engine::room(std::size_t its_own) const noexcept {
  auto const unit = supply_.paged() ? smallest_page : granule;
  auto const most = std::min(supply_.chunks().most() / unit * unit, ceiling_);
  auto const reserved = supply_.chunks().reserved();
  auto const free = free_bytes() + (most - std::min(most, reserved));
  return free - std::min(free, queue_.set_aside() - its_own);
}

bool pool_engine::fits(waiter const& item) const noexcept {
  auto const bytes = rounded(item);
  return bytes <= room(waiter_list::has_turn(item) ? bytes : 0);
}

// Whether memory is granted, or is about to be.
bool pool_engine::is_held() const noexcept { return live_blocks() > 0 || deferred_ || queue_.set_aside() > 0; }

// Whether the request cannot be met any more.
bool pool_engine::ends(waiter const& item) const noexcept {
  auto const limit = supply_.chunks().limit();
  return is_shut() || lost() || (limit && item.bytes() > limit);
}

// Whether nothing is left that the request could wait for.
bool pool_engine::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held() && !(fits(item) && pool_order::may_complete(everywhere()));
}

// As long as there could be memory for the next. A request that cannot be met any more is called to be told so.
void pool_engine::call_next(called_waiters& calls) noexcept {
  auto const may = [this](waiter const& item) {
    if (ends(item)) return true;
    if (item.has_parts() && of_parts_) return false; // one such request at a time: see give_back
    return (item.note() != news(item) && fits(item)) || waits_for_nothing(item);
  };
  while (auto* const next = queue_.next_for_turn(may)) {
    if (!ends(*next)) queue_.count_overtaking(next);
    give_turn(*next, calls);
  }
}

// After the limit has changed, and where the pool is closed.
void pool_engine::call_ended(called_waiters& calls) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && ends(*at)) give_turn(*at, calls);
  }
}

void pool_engine::give_turn(waiter& item, called_waiters& calls) noexcept {
  take_turn(item);
  calls.add(item);
}

void pool_engine::take_turn(waiter& item) noexcept {
  queue_.give_turn(item, rounded(item));
  if (item.has_parts()) of_parts_ = &item;
}

pool_engine::turn pool_engine::new_turn(waiter const& item) noexcept {
  note_completion();
  return {waiting::turn, news(item)};
}

// For calls that cannot call waiters themselves, since they go on for long.
void pool_engine::tell_waiting() noexcept {
  if (!has_waiting()) return;
  ++changes_;
  post_pass();
}

// To park (O11): first all frees are told to look at the queue, then what threads have kept is taken out, and then the
// request tries once more. What is freed in between counts as news.
pool_engine::turn pool_engine::begin_turn(waiter& item) noexcept {
  called_waiters calls;
  shard_locks held{shards_};
  if (waiter_list::holds(item)) return new_turn(item);
  if (is_shut()) {
    held.unlock(); // adaptors are told of it
    item.settle(unexpected<failure>{failure{outcome::closed, 0, item.bytes()}});
    return {waiting::answered};
  }
  bool const first = queue_.empty();
  if (!queue_.park(item)) return {waiting::answered};
  watches_ = 0;
  if (!first) {
    pressure_calls_.note_park();
    call_next(calls);
    look_later();
    return {waiting::parked};
  }
  quiet_since_ = sync::now();
  door_.store(door::queue, std::memory_order_relaxed);
  set_pressure(true);
  sweep();
  take_turn(item);
  return new_turn(item);
}

pool_engine::turn pool_engine::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    called_waiters calls;
    shard_locks const held{shards_};
    if (!result && result.error().what == outcome::exhausted) {
      if (item.cancelled()) {
        result = unexpected<failure>{failure{item.refusal(), 0, item.bytes()}};
      } else if (auto const again = wait_again(item, mine, calls); again.what != waiting::answered) {
        return again;
      }
    }
    grants_ += result.has_value();
    last = forget(item, calls);
  }
  item.settle(result);
  return {last ? waiting::last : waiting::answered};
}

// After a refusal. It tries again at once if something is new since its turn began; it waits if others have memory, or
// if what it lacks is that work completes. What was set aside for it may be enough for a later request.
pool_engine::turn pool_engine::wait_again(waiter& item, turn const& mine, called_waiters& calls) noexcept {
  note_completion();
  // What such a request gives back of a hardened pool looks like news.
  bool const tells = !(options_.hardened.enabled && item.has_parts());
  if (!tells) vain_ += news(item) - mine.since;
  bool const any = tells && news(item) != mine.since;
  if (any && (is_shut() || fits(item))) return new_turn(item);
  end_turn_of(item);
  // Not the limit refused it: upstream has less than that left.
  auto const bytes = rounded(item);
  bool const full = supply_.chunks().room() >= bytes + item.alignment();
  if (full && !item.has_parts()) ceiling_ = supply_.chunks().reserved() + bytes - granule;
  if (waits_for_nothing(item)) {
    ++shards_.own().counts.failures;
    return {waiting::answered};
  }
  if (item.note() == 0) pressure_calls_.note_park();
  item.set_note(tells ? mine.since : news(item));
  call_next(calls);
  look_later();
  return {waiting::parked};
}

void pool_engine::end_turn_of(waiter& item) noexcept {
  queue_.end_turn(item, fits(item));
  if (of_parts_ == &item) of_parts_ = nullptr;
}

void pool_engine::give_back(stream_key const& key, void* pointer) noexcept {
  shard_locks const held{shards_};
  auto const before = changes_;
  auto& freed = *shards_.granted_at(pointer).that;
  end_live(freed, {key, pointer, std::nullopt, {&key.order(), end_use(key, &freed, std::nullopt)}}, *freed.home->shard);
  given_back_ += changes_ - before;
  changes_ = before;
}

expected<void*, failure> pool_engine::may_go_on(waiter const& item) noexcept {
  shard_locks const held{shards_};
  if (is_shut()) return unexpected<failure>{failure{outcome::closed, 0, item.bytes()}};
  if (lost()) return unexpected<failure>{failure{outcome::device_lost, where()->loss(), item.bytes()}};
  auto const limit = supply_.chunks().limit();
  bool const too_large = limit && rounded(item) > limit;
  bool const tries = options_.hardened.enabled && item.has_parts(); // which empties the quarantine
  if (!too_large && (tries || fits(item))) return nullptr;
  return unexpected<failure>{failure{too_large ? outcome::too_large : outcome::exhausted, 0, item.bytes()}};
}

bool pool_engine::withdraw(waiter& item, bool& last) noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.leaving())) return false;
  last = forget(item, calls);
  return true;
}

// It may have been what the others waited behind. Whether it was the last user of the pool.
bool pool_engine::forget(waiter& item, called_waiters& calls) noexcept {
  queue_.remove(item);
  if (of_parts_ == &item) of_parts_ = nullptr;
  if (queue_.empty()) ceiling_ = SIZE_MAX;
  if (queue_.empty() && has_waiting()) door_.store(door::open, std::memory_order_relaxed);
  call_next(calls);
  look_later();
  return is_unused();
}

void pool_engine::refuse_requests() noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  shut_door(calls);
}

void pool_engine::shut_door(called_waiters& calls) noexcept {
  door_.store(door::shut, std::memory_order_relaxed);
  set_caching();
  sweep();
  ++changes_;
  call_ended(calls);
}

// Where nothing is known to be in use any more, this is news, whichever call has seen it complete.
bool pool_engine::note_completion() noexcept {
  bool const open = is_open();
  changes_ += was_open_ && !open;
  was_open_ = open;
  return open;
}

// Whether some stream's use of free memory is not known to be over.
bool pool_engine::is_open() const noexcept {
  if (pool_order::may_complete(everywhere())) return true;
  try {
    return !pool_order::open_timelines(false, everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

// The request that may lack nothing but that work completes, for which only the library thread looks, or null.
waiter* pool_engine::next_to_watch() noexcept {
  if (!has_waiting()) return nullptr;
  if (options_.hardened.enabled || deferred_) return queue_.next_waiting();
  return queue_.next_for_turn([this](waiter const& item) { return fits(item); });
}

bool pool_engine::watches() noexcept {
  auto const* const next = next_to_watch();
  if (!next) return false;
  bool const open = note_completion();
  return options_.hardened.enabled || deferred_ || news(*next) != next->note() || open;
}

// Whether all memory could be held by work that waits, as far as is known without a look at it.
bool pool_engine::may_stall() const noexcept {
  return has_waiting() && queue_.set_aside() == 0 && (queue_.has_holders() || holders_.has_marked());
}

// By the library thread: at what completes, for others that could free memory, and whether the queue has stalled.
void pool_engine::look_later() noexcept {
  if (!has_waiting()) return;
  if (may_stall() || watches() || pressure_is_due()) post_pass();
  watch_for_stall();
}

// The request that ends so that others can go on, or null. Older work does not wait for younger work that waits itself
// and can be rolled back: the youngest give way until there is enough. Otherwise a request ends only if all memory is
// held by work that waits, or nothing has happened for long. Wound-wait: Rosenkrantz, Stearns, Lewis, "System level
// concurrency control for distributed database systems" (1978).
waiter* pool_engine::next_to_end() noexcept {
  auto* const first = queue_.next_waiting();
  if (!first || !has_waiting() || deferred_ || supply_.growing() || pressure_calls_.pending()) return nullptr;
  if (fits(*first) && (news(*first) != first->note() || pool_order::may_complete(everywhere()))) return nullptr;
  auto const yielding = queue_.find_yielding(*first);
  // Bytes that were enough and did not serve it are in pieces.
  auto const needed = rounded(*first), coming = giving_way_ + (fits(*first) ? 0 : room());
  bool const enough = needed <= room() + giving_way_ + yielding.held;
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
bool pool_engine::end_one_for_others() noexcept {
  waiter* ended = nullptr;
  auto why = outcome::stalled;
  {
    called_waiters calls;
    shard_locks const held{shards_};
    ended = next_to_end();
    if (!ended) return false;
    auto* const work = ended->holder();
    if (work && work->may_roll_back() && ended != queue_.next_waiting()) {
      why = outcome::preempted;
      giving_way_ += work->give_way(ended->bytes());
    }
    ++grants_;
    forget(*ended, calls);
  }
  ended->refuse(failure{why, 0, ended->bytes()});
  return true;
}

void pool_engine::note_holder(holder& whose, holder_event what) noexcept {
  if (what == holder_event::begins) return holders_.add(whose);
  if (what == holder_event::ends) return holders_.remove(whose);
  shard_locks const held{shards_};
  if (what == holder_event::waits) holders_.mark(whose);
  if (what == holder_event::goes_on) holders_.unmark(whose);
  if (what == holder_event::gave_way) giving_way_ -= whose.end_giving_way();
  look_later();
}

// By the library thread. Where nothing tells whether something is new the request tries each time. It looks even if
// nothing is open any more: another thread may have seen the work complete.
void pool_engine::watch() noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  if (!has_waiting()) return;
  try {
    serve_deferred();
    order_.learn_completion(nullptr, everywhere());
  } catch (std::bad_alloc const&) {
    // The next look may have the host's memory.
  }
  order_.give_completed(everywhere());
  note_completion();
  bool const tells = !options_.hardened.enabled && options_.cross_stream != reuse::own;
  auto* const next = next_to_watch();
  if (!next || (tells && news(*next) == next->note())) return;
  if (tells) watches_ = 0;
  if (!tells) next->set_note(0);
  if (options_.hardened.enabled) give_turn(*next, calls); // a request that tries empties the quarantine
  call_next(calls);
}

} // namespace gpumem::detail
