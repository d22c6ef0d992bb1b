// Waiters (requests that can wait for memory): ends them with memory or an error, and keeps the list of those that
// wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:waiter.impl;
import :waiter;
import :cuda;
import :error;
import :holder;
import :sync;

namespace gpumem {

// Keeps the first holder (unit of work that holds memory): that of the outermost scope, which also counts the bytes of
// inner scopes. A request that asks again writes nothing here, since other threads may be reading the holder.
void waiter::set_holder(class holder& of) noexcept {
  if (holder_) return;
  holder_ = &of;
  priority_ = of.priority();
}

void waiter::complete(expected<void*, failure> result) noexcept {
  if (result) {
    part(0).pointer = *result;
    for (std::size_t i = hook_count_; i > 0; --i) {
      for (std::size_t at = 0; at < parts(); ++at) {
        auto const& one = part(at);
        if (one.pointer) hooks_[i - 1]->on_grant(*this, one);
      }
    }
  }
  if (!result || asks_for_turn()) {
    for (std::size_t i = hook_count_; i > 0; --i) hooks_[i - 1]->on_refusal(*this);
  }
  result_ = result;
  complete_ = true;
}

void waiter::grant(void* pointer) noexcept {
  complete(pointer);
  on_complete();
}

void waiter::refuse(failure const& why) noexcept {
  complete(unexpected<failure>{why});
  on_complete();
}

bool waiter::add_hook(grant_hook& hook) noexcept {
  if (hook_count_ == max_hooks) return false;
  hooks_[hook_count_++] = &hook;
  return true;
}

bool waiter::has_passed(grant_hook const& by) const noexcept {
  for (auto const& each : passed_) {
    if (each.load(std::memory_order_relaxed) == &by) return true;
  }
  return false;
}

// A hook has functions of an adaptor that run when the request is answered. Each hook takes at most one entry, and
// there are as many entries as hooks. So one entry is free.
void waiter::mark_passed(grant_hook const& by) noexcept {
  for (auto& each : passed_) {
    if (!each.load(std::memory_order_relaxed)) return each.store(&by, std::memory_order_relaxed);
  }
}

bool waiter::clear_passed(grant_hook const& by) noexcept {
  for (auto& each : passed_) {
    if (each.load(std::memory_order_relaxed) != &by) continue;
    each.store(nullptr, std::memory_order_relaxed);
    return true;
  }
  return false;
}

expected<void*, failure> waiter::take_result() noexcept {
  complete_ = false;
  return std::exchange(result_, expected<void*, failure>{nullptr});
}

bool waiter_list::park(waiter& item) noexcept {
  if (item.cancelled()) return false;
  item.age_ = item.holder_ ? item.holder_->age() : holder::next_age();
  item.overtaken_ = 0;
  item.was_refused_ = false;
  item.parked_since_ = sync::now();
  auto* at = items_.last();
  while (at && goes_first(item, *at)) at = at->links_.previous;
  items_.insert_after(at, item);
  item.parked_ = true;
  of_holders_ += item.holder_ != nullptr;
  add_waiting(item);
  return true;
}

bool waiter_list::remove(waiter& item) noexcept {
  if (!item.parked_) return false;
  if (has_turn(item)) {
    take_turn_from(item);
  } else {
    remove_waiting(item);
  }
  items_.remove(item);
  item.parked_ = false;
  of_holders_ -= item.holder_ != nullptr;
  return true;
}

waiter_list::yielding waiter_list::find_yielding(waiter const& first) const noexcept {
  yielding found;
  holder const* counted = nullptr; // the holder whose bytes were added last; its requests are neighbours in the list
  for (auto* at = items_.last(); at && at != &first; at = at->links_.previous) {
    auto const* const of = at->holder_;
    if (!of || of == first.holder_ || has_turn(*at) || of->held() == 0) continue;
    if (!of->may_roll_back() || of->gives_way()) continue;
    if (!found.last) found.last = at;
    if (of != counted) found.held += of->held();
    counted = of;
  }
  return found;
}

waiter* waiter_list::last_with_memory() const noexcept {
  auto* at = items_.last();
  while (at && (!at->holder_ || at->holder_->held() == 0)) at = at->links_.previous;
  return at;
}

waiting_statistics waiter_list::read_statistics() const noexcept {
  waiting_statistics sum;
  auto const now = sync::now();
  for (auto const* at = items_.first(); at; at = at->links_.next) {
    ++sum.requests;
    sum.bytes += at->bytes();
    sum.oldest = std::max<sync::duration>(sum.oldest, now - at->parked_since_);
  }
  return sum;
}

void waiter_list::give_turn(waiter& item, std::size_t bytes) noexcept {
  remove_waiting(item);
  item.turn_ = bytes;
  set_aside_ += bytes;
  item.turns_before_ = ++turns_;
  item.exclusive_ = item.was_refused_ && item.overtaken_ >= max_overtakes_;
  exclusive_ += item.exclusive_;
}

void waiter_list::take_turn_from(waiter& item) noexcept {
  set_aside_ -= std::exchange(item.turn_, 0);
  exclusive_ -= std::exchange(item.exclusive_, false);
}

void waiter_list::end_turn(waiter& item, bool in_vain) noexcept {
  take_turn_from(item);
  item.was_refused_ = item.was_refused_ || in_vain;
  auto const others = in_vain ? turns_ - item.turns_before_ : 0;
  item.overtaken_ = static_cast<unsigned>(std::min<std::uint64_t>(item.overtaken_ + others, UINT_MAX));
  add_waiting(item);
}

// Counts one overtaking for each request that should go before `by` (null: for each request). Each request is counted
// at most `max_overtakes` times, which bounds the time of all these walks together.
void waiter_list::count_overtaking(waiter const* by) noexcept {
  for (auto* at = first_waiting_; at && (!by || goes_first(*at, *by)); at = at->links_.next) {
    if (!has_turn(*at) && ++at->overtaken_ == max_overtakes_) ++blocked_;
  }
}

bool waiter_list::goes_first(waiter const& one, waiter const& other) noexcept {
  return one.priority_ > other.priority_ || (one.priority_ == other.priority_ && one.age_ < other.age_);
}

void waiter_list::add_waiting(waiter& item) noexcept {
  if (!first_waiting_ || goes_first(item, *first_waiting_)) first_waiting_ = &item;
  blocked_ += item.overtaken_ >= max_overtakes_;
  waiting_bytes_ += item.bytes();
}

void waiter_list::remove_waiting(waiter& item) noexcept {
  blocked_ -= item.overtaken_ >= max_overtakes_;
  waiting_bytes_ -= item.bytes();
  if (first_waiting_ != &item) return;
  do { first_waiting_ = first_waiting_->links_.next; } while (first_waiting_ && has_turn(*first_waiting_));
}

void woken_waiters::add(waiter& item) noexcept {
  item.next_woken_ = nullptr;
  *end_ = &item;
  end_ = &item.next_woken_;
}

// A waiter may be destroyed as soon as wake() is called, so the next one is read first.
woken_waiters::~woken_waiters() {
  while (auto* const item = first_) {
    first_ = item->next_woken_;
    item->wake();
  }
}

} // namespace gpumem
