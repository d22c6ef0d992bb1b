// The pairing heap of timers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <utility>
module gpumem:timer.impl;
import :timer;
import :sync;

namespace gpumem::detail {

void timer_heap::insert(timer& item, sync::time_point deadline) noexcept {
  item.deadline_ = deadline;
  item.number_ = started_++;
  item.waits_ = true;
  item.child_ = nullptr;
  root_ = merge(root_, &item);
}

bool timer_heap::remove(timer& item) noexcept {
  if (!std::exchange(item.waits_, false)) return false;
  auto* const below = merge_all(item.child_);
  if (root_ == &item) {
    root_ = below;
    return true;
  }
  auto* const left = item.previous_;
  (left->child_ == &item ? left->child_ : left->next_) = item.next_;
  if (item.next_) item.next_->previous_ = left;
  root_ = merge(root_, below);
  return true;
}

bool timer_heap::before(timer const& a, timer const& b) noexcept {
  return a.deadline_ == b.deadline_ ? a.number_ < b.number_ : a.deadline_ < b.deadline_;
}

// The later of two roots becomes the first child of the other root.
timer* timer_heap::merge(timer* a, timer* b) noexcept {
  if (!a || !b) return a ? a : b;
  if (before(*b, *a)) std::swap(a, b);
  b->next_ = a->child_;
  if (b->next_) b->next_->previous_ = b;
  b->previous_ = a;
  a->child_ = b;
  return a;
}

// Merges siblings into one tree: first into pairs from left to right, then the pairs from right to left.
timer* timer_heap::merge_all(timer* first) noexcept {
  timer* pairs = nullptr;
  while (first) {
    auto* const second = first->next_;
    auto* const rest = second ? second->next_ : nullptr;
    auto* const pair = merge(first, second);
    pair->next_ = std::exchange(pairs, pair);
    first = rest;
  }
  timer* merged = nullptr;
  while (pairs) {
    auto* const rest = pairs->next_;
    merged = merge(merged, pairs);
    pairs = rest;
  }
  return merged;
}

} // namespace gpumem::detail
