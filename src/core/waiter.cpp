// Deciding a waiter.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <utility>
module gpumem:waiter.impl;
import :waiter;
import :cuda;
import :error;

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
  item.next_ = nullptr;
  item.previous_ = last_;
  item.parked_ = true;
  (last_ ? last_->next_ : first_) = &item;
  last_ = &item;
  return true;
}

bool waiter_list::remove(waiter& item) noexcept {
  if (!item.parked_) return false;
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
  item.parked_ = false;
  end_turn(item);
  return true;
}

waiter* waiter_list::next_waiting() const noexcept {
  auto* at = first_;
  while (at && has_turn(*at)) at = at->next_;
  return at;
}

void waiter_list::give_turn(waiter& item, std::size_t bytes) noexcept {
  item.turn_ = bytes;
  set_aside_ += bytes;
}

void waiter_list::end_turn(waiter& item) noexcept { set_aside_ -= std::exchange(item.turn_, 0); }

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
