// Answers requests that wait, and keeps their order.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
module gpumem:waiter.impl;
import :waiter;
import :cuda;
import :error;
import :holder;
import :stream;
import :sync;

namespace gpumem {

request_parts::request_parts(stream_key const& stream, std::size_t bytes, std::size_t alignment,
                             std::span<request_part> more) noexcept
    : first_{stream, bytes, alignment}, more_{more}, bytes_{bytes} {
  for (auto const& each : more)
    bytes_ += std::min(each.bytes, PTRDIFF_MAX - std::min<std::size_t>(bytes_, PTRDIFF_MAX));
}

// Keeps the first holder: that of the outermost scope, which counts the bytes as its own. A request that asks again
// writes nothing here, since other threads may be reading the holder.
void waiter::set_holder(class holder& unit) noexcept {
  if (holder_) return;
  holder_ = &unit;
  priority_ = unit.priority();
}

void waiter::complete(expected<void*, failure> result) noexcept {
  if (result) {
    part(0).pointer = *result;
    for (auto* at = innermost_; at; at = at->outer) {
      for (std::size_t i = 0; i < parts(); ++i) {
        auto const& one = part(i);
        if (one.pointer) at->hook->on_grant(*this, one);
      }
    }
  }
  if (!result || asks_for_turn()) {
    for (auto* at = innermost_; at; at = at->outer) at->hook->on_refusal(*this);
  }
  result_ = result;
  complete_ = true;
}

void waiter::grant(void* pointer) noexcept {
  complete(pointer);
  on_complete();
}

void waiter::refuse(failure const& error) noexcept {
  complete(unexpected<failure>{error});
  on_complete();
}

waiter::~waiter() {
  auto* at = first_passage_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; at; ++i) {
    auto* const next = at->next.load(std::memory_order_relaxed);
    if (i >= places) delete at;
    at = next;
  }
}

waiter::passage* waiter::find(grant_hook const& hook) const noexcept {
  auto* at = first_passage_.load(std::memory_order_acquire);
  while (at && at->hook != &hook) at = at->next.load(std::memory_order_acquire);
  return at;
}

// Adds a passage to the list. Returns null if the host has no memory.
waiter::passage* waiter::make_passage(grant_hook& hook) noexcept {
  void* const place = storage_.data() + std::min(passages_, places - 1) * sizeof(passage);
  auto* const made = passages_ < places ? ::new (place) passage{&hook} : new (std::nothrow) passage{&hook};
  if (!made) return nullptr;
  (last_passage_ ? last_passage_->next : first_passage_).store(made, std::memory_order_release);
  last_passage_ = made;
  ++passages_;
  return made;
}

bool waiter::add_hook(grant_hook& hook) noexcept {
  auto* mine = find(hook);
  if (!mine) mine = make_passage(hook);
  if (!mine) return false;
  if (std::exchange(mine->added, true)) return true;
  mine->outer = std::exchange(innermost_, mine);
  return true;
}

void waiter::clear_hooks() noexcept {
  for (; innermost_; innermost_ = innermost_->outer) innermost_->added = false;
}

bool waiter::has_passed(grant_hook const& hook) const noexcept {
  auto const* const mine = find(hook);
  return mine && mine->passed.load(std::memory_order_relaxed);
}

void waiter::mark_passed(grant_hook const& hook) noexcept {
  if (auto* const mine = find(hook)) mine->passed.store(true, std::memory_order_relaxed);
}

bool waiter::clear_passed(grant_hook const& hook) noexcept {
  auto* const mine = find(hook);
  return mine && mine->passed.exchange(false, std::memory_order_relaxed);
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
  item.number_ = ++parks_;
  items_.insert_after(insert_into_tree(item), item);
  item.parked_ = true;
  of_holders_ += item.holder_ != nullptr;
  lacks_ += item.lack_ != nullptr;
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
  remove_from_tree(item);
  items_.remove(item);
  item.parked_ = false;
  of_holders_ -= item.holder_ != nullptr;
  lacks_ -= item.lack_ != nullptr;
  return true;
}

void waiter_list::update(waiter& item) noexcept {
  auto const bytes = item.lack_ ? std::max<std::size_t>(item.lack_->bytes(), 1) : item.bytes();
  if (bytes == item.bytes()) return;
  remove_waiting(item);
  item.set_bytes(bytes);
  add_waiting(item);
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
  ++changes_;
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

// Counts one overtaking for each request that should go before `overtaker` (null: for each request). Each request is
// counted at most `max_overtakes` times, which bounds the time of all these walks together.
void waiter_list::count_overtaking(waiter const* overtaker) noexcept {
  for (auto* at = first_waiting_; at && (!overtaker || goes_first(*at, *overtaker)); at = at->links_.next) {
    if (!has_turn(*at) && ++at->overtaken_ == max_overtakes_) ++blocked_;
  }
}

bool waiter_list::goes_first(waiter const& item, waiter const& other) noexcept {
  if (item.priority_ != other.priority_) return item.priority_ > other.priority_;
  return item.age_ != other.age_ ? item.age_ < other.age_ : item.number_ < other.number_;
}

// Returns the height of a request in the tree: a random number, so that the tree stays flat in whatever order requests
// arrive. It follows from the number alone. Algorithm: the finalizer of MurmurHash3, by Austin Appleby.
std::uint64_t waiter_list::height(waiter const& item) noexcept {
  auto mixed = item.number_;
  mixed = (mixed ^ (mixed >> 33)) * 0xff51afd7ed558ccdu;
  mixed = (mixed ^ (mixed >> 33)) * 0xc4ceb9fe1a85ec53u;
  return mixed ^ (mixed >> 33);
}

// Inserts the request into the tree. Each request is higher than those in its subtrees. The subtree that has its place
// is split into the requests before it and those behind it: Seidel, Aragon, "Randomized search trees" (1996). Returns
// the last request that goes before it; null if there is none.
waiter* waiter_list::insert_into_tree(waiter& item) noexcept {
  waiter* last_before = nullptr;
  auto** place = &root_;
  auto const descends = [&](waiter& past) {
    ++comparisons_;
    bool const first = goes_first(item, past);
    if (!first) last_before = &past;
    return first;
  };
  while (*place && height(**place) > height(item)) place = descends(**place) ? &(*place)->before_ : &(*place)->behind_;
  auto *rest = std::exchange(*place, &item), **before = &item.before_, **behind = &item.behind_;
  while (rest) {
    auto** const into = descends(*rest) ? behind : before;
    *into = rest;
    if (into == behind) {
      rest = *(behind = &(*into)->before_);
    } else {
      rest = *(before = &(*into)->behind_);
    }
  }
  *before = *behind = nullptr;
  return last_before;
}

// Joins the two subtrees of the request, and puts them in its place.
void waiter_list::remove_from_tree(waiter& item) noexcept {
  auto** place = &root_;
  for (; *place != &item; ++comparisons_) place = goes_first(item, **place) ? &(*place)->before_ : &(*place)->behind_;
  auto *before = item.before_, *behind = item.behind_;
  while (before && behind) {
    auto*& higher = height(*before) > height(*behind) ? before : behind;
    *place = higher;
    place = &higher == &before ? &higher->behind_ : &higher->before_;
    higher = *place;
  }
  *place = before ? before : behind;
}

void waiter_list::add_waiting(waiter& item) noexcept {
  ++changes_;
  if (!first_waiting_ || goes_first(item, *first_waiting_)) first_waiting_ = &item;
  blocked_ += item.overtaken_ >= max_overtakes_;
  waiting_bytes_ += item.bytes();
}

void waiter_list::remove_waiting(waiter& item) noexcept {
  ++changes_;
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

void ended_waiters::add(waiter& item) noexcept {
  item.next_woken_ = nullptr;
  *end_ = &item;
  end_ = &item.next_woken_;
}

// A waiter may be destroyed as soon as refuse() is called, so the next one is read first.
ended_waiters::~ended_waiters() {
  while (auto* const item = first_) {
    first_ = item->next_woken_;
    item->refuse(failure{reason_, 0, item->bytes()});
  }
}

} // namespace gpumem
