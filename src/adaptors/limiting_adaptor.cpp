// limiting_adaptor: passes requests to the upstream, or parks them until they fit under the limit.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
module gpumem:limiting_adaptor.impl;
import :limiting_adaptor;
import :deadlock_monitor;
import :error;
import :holder;
import :process;
import :services;
import :stream;
import :sync;
import :waiter;

namespace gpumem::detail {
namespace {

std::size_t checked_limit(std::size_t bytes) {
  if (bytes == 0) throw std::invalid_argument{"gpumem: the limit of a limiting_adaptor must be greater than 0"};
  if (bytes > PTRDIFF_MAX)
    throw std::invalid_argument{"gpumem: the limit of a limiting_adaptor is greater than PTRDIFF_MAX"};
  return bytes;
}

expected<void*, failure> refused(waiter const& item, outcome reason) noexcept {
  return unexpected<failure>{failure{reason, 0, item.bytes()}};
}

} // namespace

limiter::limiter(limiting_options const& options)
    : queue_{options.max_overtakes}, limit_{checked_limit(options.limit)} {
  deadlock_monitor::get().add(*this);
}

limiter::~limiter() { deadlock_monitor::get().remove(*this); }

void limiter::set_limit(std::size_t bytes) {
  checked_limit(bytes);
  if (forked()) return;
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  limit_ = bytes;
  wake_ended(woken);
  wake_next(woken);
  schedule_look(); // younger work may now hold enough for the first request
}

// Gives a turn to each waiting request that must fail, so that it ends: those above a new limit, or all if the adaptor
// is closed.
void limiter::wake_ended(woken_waiters& waiters) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && refusal(*at)) give_turn(*at, waiters);
  }
}

void limiter::close() noexcept {
  if (forked()) return;
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  closed_ = true;
  wake_ended(woken);
}

std::size_t limiter::limit() noexcept {
  if (forked()) return 0;
  sync::spin_lock const lock{mutex_};
  return limit_;
}

bool limiter::has_room(std::size_t bytes) noexcept {
  if (forked()) return false;
  sync::spin_lock const lock{mutex_};
  return fits(bytes);
}

std::size_t limiter::in_use() noexcept {
  if (forked()) return 0;
  sync::spin_lock const lock{mutex_};
  return in_use_;
}

std::optional<outcome> limiter::enter(std::size_t bytes, queueing place_in_queue) noexcept {
  sync::spin_lock const lock{mutex_};
  if (auto const why = refusal(bytes)) return why;
  if (place_in_queue != queueing::none && !queue_.empty()) return outcome::exhausted;
  if (!queue_.may_be_overtaken() || !fits(bytes)) return outcome::exhausted;
  queue_.count_overtaking();
  in_use_ += bytes;
  return std::nullopt;
}

void limiter::leave(std::size_t bytes) noexcept {
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  in_use_ -= bytes;
  wake_next(woken);
  schedule_look();
}

void limiter::end_use(std::size_t bytes) noexcept {
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  in_use_ -= bytes;
  ++frees_;
  wake_next(woken);
  schedule_look();
}

// Returns why a request of this size must fail, even if other blocks are freed; none if it can still be granted.
std::optional<outcome> limiter::refusal(std::size_t bytes) const noexcept {
  if (closed_) return outcome::closed;
  if (bytes > limit_) return outcome::too_large;
  return std::nullopt;
}

std::optional<outcome> limiter::refusal(waiter const& item) const noexcept { return refusal(size_of(item)); }

// Returns the bytes that must fit under the limit. A request that asks only for a turn waits for no more than the
// limit.
std::size_t limiter::size_of(waiter const& item) const noexcept {
  return item.asks_for_turn() ? std::min(item.bytes(), limit_) : item.bytes();
}

// Returns whether `bytes` fit under the limit, besides the bytes in use and those set aside for waiting requests. Bytes
// set aside for the caller itself (`own_bytes`) do not count.
bool limiter::fits(std::size_t bytes, std::size_t own_bytes) const noexcept {
  return bytes <= limit_ - std::min(limit_, in_use_ + queue_.set_aside() - own_bytes);
}

// Gives turns to the next requests in the queue. A request that must fail gets a turn in which it ends. A request that
// fits gets a turn if a block was freed since its last attempt. It also gets one if nothing is in use or set aside:
// then no free can come, so the request tries a last time, and ends.
void limiter::wake_next(woken_waiters& waiters) noexcept {
  auto const may = [this](waiter const& item) {
    mutex_.assert_held();
    bool const nothing_held = in_use_ == 0 && queue_.set_aside() == 0;
    return refusal(item) || (fits(size_of(item)) && (item.seen_changes() != frees_ || nothing_held));
  };
  while (auto* const next = queue_.next_for_turn(may)) {
    if (!refusal(*next)) queue_.count_overtaking(next);
    give_turn(*next, waiters);
  }
}

void limiter::give_turn(waiter& item, woken_waiters& waiters) noexcept {
  queue_.give_turn(item, size_of(item));
  waiters.add(item);
}

// Parks a new request, or goes on with a parked request that was woken. A new request gets its turn immediately if no
// other request waits and it fits. A woken request must fit once more, since the limit may have been lowered meanwhile.
limiter::turn_result limiter::begin(waiter& item, bool upstream_waits, later& calls) noexcept {
  if (item.has_passed(*this)) return {waiting::passed};
  if (auto const why = refusal(item)) return end(item, refused(item, *why), calls);
  if (!waiter_list::holds(item)) {
    bool const first = queue_.empty();
    if (!queue_.park(item)) return {waiting::answered};
    if (!first || !fits(size_of(item))) {
      wake_next(calls.woken);
      schedule_look();
      return {waiting::parked};
    }
    queue_.give_turn(item, size_of(item));
  } else if (!fits(size_of(item), waiter_list::bytes_aside(item))) {
    return wait_again(item, calls);
  }
  if (!upstream_waits) return {waiting::turn, frees_};
  queue_.remove(item);
  in_use_ += item.bytes();
  item.mark_passed(*this);
  schedule_look();
  return {waiting::passed};
}

// Decides how a request goes on after the upstream was tried. If the upstream was exhausted and a block was freed since
// the turn began, the request tries again immediately, since a free wakes no request that has its turn. If no block is
// left that could be freed, or the host has no memory, the request ends. Otherwise it waits again.
limiter::turn_result limiter::go_on(waiter& item, turn_result const& last, expected<void*, failure> const& result,
                                    later& calls) noexcept {
  if (result || !may_wait_after(result.error())) return end(item, result, calls);
  if (auto const why = refusal(item)) return end(item, refused(item, *why), calls); // the limit was lowered meanwhile
  bool const any = frees_ != last.since;
  auto const aside = waiter_list::bytes_aside(item);
  if (any && fits(size_of(item), aside)) return {waiting::turn, frees_};
  bool const others_hold = in_use_ > 0 || queue_.set_aside() > aside;
  if (!any && !others_hold) return end(item, result, calls);
  item.set_seen_changes(last.since);
  return wait_again(item, calls);
}

// Ends the turn of the request, which waits again. The bytes that were set aside for it may be enough for a later
// request.
limiter::turn_result limiter::wait_again(waiter& item, later& calls) noexcept {
  if (item.cancelled()) return end(item, refused(item, item.refusal()), calls);
  queue_.end_turn(item, fits(size_of(item), waiter_list::bytes_aside(item)));
  wake_next(calls.woken);
  schedule_look();
  return {waiting::parked};
}

// Answers the request and removes it from the queue. Requests behind it in the queue can then get turns.
limiter::turn_result limiter::end(waiter& item, expected<void*, failure> const& result, later& calls) noexcept {
  queue_.remove(item);
  if (result && *result) in_use_ += item.bytes(); // *result is null if the request asked only for a turn
  wake_next(calls.woken);
  schedule_look();
  calls.answer.emplace(result);
  return {waiting::answered};
}

bool limiter::is_new(waiter const& item) noexcept {
  sync::spin_lock const lock{mutex_};
  return !waiter_list::holds(item) && !item.has_passed(*this);
}

bool limiter::exceeds_limit(waiter const& item) noexcept {
  sync::spin_lock const lock{mutex_};
  return size_of(item) > limit_;
}

limiter::turn_result limiter::begin_turn(waiter& item, bool upstream_waits) noexcept {
  later calls;
  sync::spin_lock lock{mutex_};
  auto const begun = begin(item, upstream_waits, calls);
  lock.unlock();
  if (calls.answer) item.complete(*calls.answer);
  return begun;
}

limiter::turn_result limiter::end_turn(waiter& item, turn_result const& last,
                                       expected<void*, failure> result) noexcept {
  later calls;
  sync::spin_lock lock{mutex_};
  auto const next = go_on(item, last, result, calls);
  lock.unlock();
  if (calls.answer) item.complete(*calls.answer);
  return next;
}

std::optional<bool> limiter::take_back(waiter& item) noexcept {
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  if (item.has_passed(*this)) return std::nullopt;
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.is_being_destroyed())) return false;
  queue_.remove(item);
  wake_next(woken);
  schedule_look();
  return true;
}

void limiter::on_refusal(waiter& item) noexcept {
  woken_waiters woken;
  sync::spin_lock const lock{mutex_};
  if (!item.clear_passed(*this)) return;
  in_use_ -= item.bytes();
  wake_next(woken);
  schedule_look();
}

void limiter::note_holder_event(holder& unit, holder_event event) noexcept {
  if (forked() || event == holder_event::ends) return;
  if (event == holder_event::begins) return unit.add_place(*this);
  sync::spin_lock const lock{mutex_};
  schedule_look();
}

// Makes the library thread look for work that waits for ever, if there may be such work.
void limiter::schedule_look() noexcept {
  bool const waits = queue_.next_waiting() && (queue_.has_holders() || holder::any_marked());
  if (waits && queue_.set_aside() == 0) deadlock_monitor::get().schedule();
}

void limiter::show(visitor& visitor) noexcept {
  sync::spin_lock const lock{mutex_};
  auto const* const first = queue_.next_waiting();
  if (!first) return;
  place_state now{queue_, in_use_, limit_ - std::min(limit_, in_use_ + queue_.set_aside()), size_of(*first)};
  now.fits = fits(size_of(*first));
  now.may_go_on = now.fits && first->seen_changes() != frees_;
  visitor.see(now);
}

void limiter::end_wait(waiter& item, woken_waiters& waiters) noexcept {
  mutex_.assert_held();
  queue_.remove(item);
  wake_next(waiters);
}

statistics limiter::amend(statistics statistics) noexcept {
  if (forked()) return statistics;
  sync::spin_lock const lock{mutex_};
  auto const here = queue_.read_statistics();
  if (statistics.limit == 0 || limit_ < statistics.limit) statistics.limit = limit_;
  statistics.waiting += here.requests;
  statistics.waiting_bytes += here.bytes;
  statistics.oldest_wait_ns = std::max(statistics.oldest_wait_ns, static_cast<std::uint64_t>(here.oldest.count()));
  return statistics;
}

} // namespace gpumem::detail
