// Deciding a waiter.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:waiter.impl;
import :waiter;
import :cuda;
import :error;
import :sync;

namespace gpumem {

void waiter::settle(expected<void*, failure> result) noexcept {
  if (result) {
    for (std::size_t i = hook_count_; i > 0; --i) hooks_[i - 1]->on_grant(stream_, *result, bytes_, alignment_);
  }
  result_ = result;
  settled_ = true;
}

void waiter::grant(void* pointer) noexcept {
  settle(pointer);
  decided();
}

void waiter::refuse(failure const& why) noexcept {
  settle(unexpected<failure>{why});
  decided();
}

void waiter::renew(stream_key const& stream) noexcept {
  stream_ = stream;
  hook_count_ = 0;
}

bool waiter::add_hook(grant_hook& hook) noexcept {
  if (hook_count_ == most_hooks) return false;
  hooks_[hook_count_++] = &hook;
  return true;
}

expected<void*, failure> waiter::take_result() noexcept {
  settled_ = false;
  return std::exchange(result_, expected<void*, failure>{nullptr});
}

bool waiter_list::park(waiter& item) noexcept {
  if (item.stop_requested()) return false;
  item.arrival_ = ++arrivals_;
  item.overtaken_ = 0;
  item.parked_since_ = sync::now();
  auto* at = last_;
  while (at && at->priority_ < item.priority_) at = at->previous_;
  item.previous_ = at;
  item.next_ = at ? at->next_ : first_;
  (item.previous_ ? item.previous_->next_ : first_) = &item;
  (item.next_ ? item.next_->previous_ : last_) = &item;
  item.parked_ = true;
  begin_waiting(item);
  return true;
}

bool waiter_list::remove(waiter& item) noexcept {
  if (!item.parked_) return false;
  if (has_turn(item)) {
    set_aside_ -= std::exchange(item.turn_, 0);
  } else {
    end_waiting(item);
  }
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
  item.parked_ = false;
  return true;
}

waiting_figures waiter_list::read_figures() const noexcept {
  waiting_figures sum;
  auto const now = sync::now();
  for (auto const* at = first_; at; at = at->next_) {
    ++sum.requests;
    sum.bytes += at->bytes_;
    sum.oldest = std::max<sync::duration>(sum.oldest, now - at->parked_since_);
  }
  return sum;
}

void waiter_list::give_turn(waiter& item, std::size_t bytes) noexcept {
  end_waiting(item);
  item.turn_ = bytes;
  set_aside_ += bytes;
}

void waiter_list::end_turn(waiter& item) noexcept {
  set_aside_ -= std::exchange(item.turn_, 0);
  begin_waiting(item);
}

// Each request is counted `most_overtakes` times at most, which bounds the time of all walks.
void waiter_list::count_overtaking(waiter const* by) noexcept {
  for (auto* at = first_waiting_; at && (!by || before(*at, *by)); at = at->next_) {
    if (!has_turn(*at) && ++at->overtaken_ == most_overtakes_) ++at_most_;
  }
}

bool waiter_list::before(waiter const& one, waiter const& other) noexcept {
  return one.priority_ > other.priority_ || (one.priority_ == other.priority_ && one.arrival_ < other.arrival_);
}

void waiter_list::begin_waiting(waiter& item) noexcept {
  if (!first_waiting_ || before(item, *first_waiting_)) first_waiting_ = &item;
  at_most_ += item.overtaken_ >= most_overtakes_;
}

void waiter_list::end_waiting(waiter& item) noexcept {
  at_most_ -= item.overtaken_ >= most_overtakes_;
  if (first_waiting_ != &item) return;
  do { first_waiting_ = first_waiting_->next_; } while (first_waiting_ && has_turn(*first_waiting_));
}

void called_waiters::add(waiter& item) noexcept {
  item.next_called_ = nullptr;
  *end_ = &item;
  end_ = &item.next_called_;
}

// One that is called may be gone at once.
called_waiters::~called_waiters() {
  while (auto* const item = first_) {
    first_ = item->next_called_;
    item->call();
  }
}

} // namespace gpumem
