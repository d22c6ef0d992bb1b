// Finds work that waits for ever, and ends a request of it so that the other requests go on.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>
module gpumem:deadlock_monitor.impl;
import :deadlock_monitor;
import :error;
import :holder;
import :process;
import :sync;
import :timer;
import :waiter;

namespace gpumem::detail {
namespace {

// Place in the order in which requests and work are served.
struct rank {
  int priority;
  std::uint64_t age;
  bool goes_after(rank const& other) const noexcept {
    return priority < other.priority || (priority == other.priority && age > other.age);
  }
};

rank rank_of(holder const& unit) noexcept { return {unit.priority(), unit.age()}; }
rank rank_of(waiter const& item) noexcept { return {item.priority(), waiter_list::age_of(item)}; }

// Returns whether the request's work holds memory, or bytes are set aside for the request at a place that it has
// passed.
bool holds_memory(waiter const& item) noexcept {
  bool holds = false;
  for (auto const* unit = item.holder(); unit; unit = unit->parent()) holds = holds || unit->held() > 0;
  item.visit_passed([&](grant_hook& hook) { holds = holds || hook.place(); });
  return holds;
}

// Returns the last request without a turn whose work holds memory; null if there is none.
waiter* last_with_memory(waiter_list const& queue) noexcept {
  waiter* last = nullptr;
  for (auto* at = queue.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && at->holder() && holds_memory(*at)) last = at;
  }
  return last;
}

} // namespace

// The monitor lies in static memory, so that a host without memory can make it.
deadlock_monitor& deadlock_monitor::get() noexcept {
  alignas(deadlock_monitor) static std::byte place[sizeof(deadlock_monitor)];
  static auto* const monitor = ::new (static_cast<void*>(place)) deadlock_monitor;
  return *monitor;
}

template <class F> void deadlock_monitor::change(F f) noexcept {
  if (forked()) return;
  sync::lock const lock{mutex_};
  f();
}

void deadlock_monitor::add(waiting_place& place) noexcept {
  change([&] { mutex_.assert_held(), places_.push_back(place); });
}

void deadlock_monitor::remove(waiting_place& place) noexcept {
  change([&] { mutex_.assert_held(), places_.remove(place); });
}

void deadlock_monitor::add(holder& unit) noexcept {
  change([&] { mutex_.assert_held(), holders_.push_back(unit); });
}

void deadlock_monitor::remove(holder& unit) noexcept {
  change([&] { mutex_.assert_held(), holders_.remove(unit); });
}

void deadlock_monitor::schedule() noexcept {
  if (forked() || scheduled_.exchange(true)) return;
  try {
    start_timer(*this, sync::now() + tuning::max_pass_pause);
  } catch (...) { scheduled_ = false; } // the host has no memory for the library thread: the next call tries again
}

void deadlock_monitor::expire() noexcept {
  scheduled_ = false;
  look();
}

void deadlock_monitor::look() noexcept {
  while (!forked() && end_some()) {}
}

// Returns whether it has ended a request.
bool deadlock_monitor::end_some() noexcept {
  ends now;
  sync::lock const lock{mutex_};
  if (!begin_look()) return false;
  note_parked(false);
  preempt(nullptr, now);
  if (!now.any()) preempt_for_first(now);
  if (!now.any() && find_blocked()) end_blocked(now);
  if (!now.any()) end_stalled(now);
  return now.any();
}

template <class F> void deadlock_monitor::show(waiting_place& place, F f) noexcept {
  class calling final : public waiting_place::visitor {
  public:
    explicit calling(F& f) noexcept : f_{f} {}
    void see(place_state const& state) noexcept override { f_(state); }

  private:
    F& f_;
  };
  calling to{f};
  place.show(to);
}

template <class F> void deadlock_monitor::each_place(F f) noexcept {
  for (auto* at = places_.first(); at; at = at->links_.next) f(*at);
}

template <class F> void deadlock_monitor::each_holder(F f) noexcept {
  for (auto* unit = holders_.first(); unit; unit = unit->links_.next) f(*unit);
}

// No host memory is allocated under the locks of the places.
std::vector<deadlock_monitor::parked_request> deadlock_monitor::parked_before(waiting_place const& place) {
  struct seen {
    holder const* of;
    std::size_t bytes;
    int priority;
    sync::time_point since;
  };
  sync::lock const lock{mutex_};
  auto const each_request = [&](auto f) {
    mutex_.assert_held();
    each_place([&](waiting_place& other) {
      if (&other == &place) return;
      show(other, [&](place_state const& state) {
        for (auto* item = state.queue.first(); item; item = waiter_list::after(*item))
          if (item->holder() && is_at(*item->holder(), place)) f(*item);
      });
    });
  };
  std::size_t count = 0;
  each_request([&](waiter const&) { ++count; });
  std::vector<seen> found;
  found.reserve(count);
  each_request([&](waiter const& item) {
    if (found.size() < found.capacity())
      found.push_back({item.holder(), item.bytes(), item.priority(), waiter_list::waits_since(item)});
  });
  std::vector<parked_request> result;
  for (auto const& each : found) result.push_back({each.of->name(), each.bytes, each.priority, each.since});
  return result;
}

bool deadlock_monitor::is_at(holder const& unit, waiting_place const& place) noexcept {
  return std::ranges::any_of(unit.places_, [&](auto const& each) { return each.at == &place; });
}

std::size_t deadlock_monitor::bytes_at(holder const& unit, waiting_place const& place) noexcept {
  std::size_t sum = 0;
  for (auto const& each : unit.places_) sum += each.at == &place ? each.bytes->load(std::memory_order_relaxed) : 0;
  return sum;
}

// Notes the state of each queue. Returns false if no request has to end, because no work waits and no place has
// stalled.
bool deadlock_monitor::begin_look() noexcept {
  bool found_place = false, waits = false;
  each_place([&](waiting_place& place) {
    place.blocked_ = false;
    show(place, [&](place_state const& state) {
      place.blocked_ = waits = true;
      place.seen_ = state.queue.changes();
      found_place = found_place || state.queue.has_holders() || state.has_stalled;
    });
  });
  return found_place || (waits && holder::any_marked());
}

// Notes for each holder whether a request of it or of a nested one is parked without a turn; `at_blocked`: at a place
// that is blocked. Adds up the bytes that are set aside for such requests at places that they have passed.
void deadlock_monitor::note_parked(bool at_blocked) noexcept {
  each_holder([](holder& unit) { unit.parked_ = false; });
  each_place([](waiting_place& place) { place.held_up_ = 0; });
  each_place([&](waiting_place& place) {
    if (at_blocked && !place.blocked_) return;
    show(place, [&](place_state const& state) {
      for (auto* item = state.queue.first(); item; item = waiter_list::after(*item)) {
        if (waiter_list::has_turn(*item)) continue;
        for (auto* unit = item->holder(); unit; unit = unit->parent()) unit->parked_ = true;
        item->visit_passed([&](grant_hook& hook) {
          if (auto* const passed = hook.place()) passed->held_up_ += item->bytes();
        });
      }
    });
  });
}

// Ends all requests of `victim`, and those of work that was preempted before. If one of them went on waiting, the other
// parts of the work could not end, and the work could not be rolled back.
void deadlock_monitor::preempt(holder* victim, ends& ends) noexcept {
  each_place([&](waiting_place& place) {
    show(place, [&](place_state const& state) {
      for (auto *item = state.queue.first(), *next = item; item; item = next) {
        next = waiter_list::after(*item);
        auto* const unit = item->holder();
        if (!unit || waiter_list::has_turn(*item)) continue;
        auto* const work = victim && unit->is_part_of(*victim) ? victim : unit->gives_way_with();
        if (!work) continue;
        place.end_wait(*item, ends.woken);
        ends.preempted.add(*item);
        work->preempt(item->bytes());
      }
    });
  });
  note_coming();
}

// Notes what preempted work holds, until its rollback ends: the bytes at the time when it was preempted. A free takes
// them from the holder before the place has them. If they counted at neither, further work would be preempted for them.
void deadlock_monitor::note_coming() noexcept {
  each_holder([](holder& unit) {
    bool const yields = unit.gives_way_with() != nullptr;
    for (auto& each : unit.places_)
      each.coming = yields ? std::max(each.coming, each.bytes->load(std::memory_order_relaxed)) : 0;
  });
}

deadlock_monitor::yielding deadlock_monitor::find_yielding(waiting_place const& place, waiter const& first) noexcept {
  yielding holders;
  auto const* const own_holder = first.holder() ? &first.holder()->whole() : nullptr;
  each_holder([&](holder& unit) {
    for (auto const& each : unit.places_) holders.coming += each.at == &place ? each.coming : 0;
    auto const bytes = bytes_at(unit, place);
    if (bytes == 0 || unit.gives_way_with()) return;
    auto* const work = unit.rolls_back_with();
    bool const asks = work && work->parked_;
    if (!asks || &work->whole() == own_holder || !rank_of(*work).goes_after(rank_of(first))) return;
    holders.held += bytes;
    if (!holders.last || rank_of(*work).goes_after(rank_of(*holders.last))) holders.last = work;
  });
  return holders;
}

// If enough bytes are free but the first request was refused, the free bytes lie in pieces and do not count.
void deadlock_monitor::preempt_for_first(ends& ends) noexcept {
  each_place([&](waiting_place& place) {
    mutex_.assert_held();
    if (ends.any()) return;
    holder* work = nullptr;
    show(place, [&](place_state const& state) {
      mutex_.assert_held();
      if (state.may_go_on) return;
      auto const yields = find_yielding(place, *state.queue.next_waiting());
      auto const coming = yields.coming + (state.fits ? 0 : state.headroom);
      bool const enough = state.needed <= state.headroom + yields.coming + yields.held;
      if (yields.last && state.needed > coming && enough) work = yields.last;
    });
    if (work) preempt(work, ends);
  });
}

// Returns whether the bytes in use are all held by work that waits, and nothing else can give memory.
bool deadlock_monitor::is_held_up(waiting_place const& place, place_state const& state) noexcept {
  bool const all = place.held_up_ == state.in_use;
  return all && place.held_up_ > 0 && state.queue.set_aside() == 0 && !state.may_go_on;
}

// Leaves out places until the rest are blocked. Returns whether any is.
bool deadlock_monitor::find_blocked() noexcept {
  bool found_place = true;
  for (bool changed = true; changed && found_place;) {
    changed = found_place = false;
    note_parked(true);
    add_held_up();
    each_place([&](waiting_place& place) {
      if (!place.blocked_) return;
      place.blocked_ = false;
      show(place, [&](place_state const& state) { place.blocked_ = is_held_up(place, state); });
      found_place = found_place || place.blocked_;
      changed = changed || !place.blocked_;
    });
  }
  return found_place;
}

// Adds up the bytes of the holders that wait, at each place.
void deadlock_monitor::add_held_up() noexcept {
  each_holder([](holder& unit) {
    if (unit.incomplete_ || !(unit.parked_ || unit.is_marked())) return;
    for (auto const& each : unit.places_) each.at->held_up_ += each.bytes->load(std::memory_order_relaxed);
  });
}

// The places were seen one after the other. Nothing has happened in between if no queue has changed, and if each place
// is still blocked: then work that waits had no turn, and has neither got nor freed memory.
bool deadlock_monitor::is_as_seen() noexcept {
  bool same = true;
  each_place([&](waiting_place& place) {
    if (!place.blocked_) return;
    bool this_one = false;
    show(place, [&](place_state const& state) {
      this_one = state.queue.changes() == place.seen_ && is_held_up(place, state);
    });
    same = same && this_one;
  });
  return same;
}

// Preempts the youngest work that can be rolled back for an older request. Otherwise the youngest request whose work
// holds memory ends as stalled; if there is none, a first request.
void deadlock_monitor::end_blocked(ends& ends) noexcept {
  holder* work = nullptr;
  waiter* last = nullptr;
  waiting_place* place_of_victim = nullptr;
  rank youngest{};
  bool holds = false;
  each_place([&](waiting_place& place) {
    if (!place.blocked_) return;
    show(place, [&](place_state const& state) {
      mutex_.assert_held();
      auto& first = *state.queue.next_waiting();
      auto* const yields = find_yielding(place, first).last;
      if (yields && (!work || rank_of(*yields).goes_after(rank_of(*work)))) work = yields;
      auto* const with_memory = last_with_memory(state.queue);
      auto& one = with_memory ? *with_memory : first;
      bool const better = !last || (with_memory && (!holds || rank_of(one).goes_after(youngest)));
      if (!better) return;
      last = &one, place_of_victim = &place, youngest = rank_of(one), holds = with_memory != nullptr;
    });
  });
  if (!is_as_seen()) return;
  if (work) return preempt(work, ends);
  show(*place_of_victim, [&](place_state const& state) {
    if (state.queue.changes() != place_of_victim->seen_) return; // the request may be gone
    place_of_victim->end_wait(*last, ends.woken);
    ends.stalled.add(*last);
  });
}

// Ends a request at a place where nothing was granted or freed for a long time.
void deadlock_monitor::end_stalled(ends& ends) noexcept {
  note_parked(false);
  each_place([&](waiting_place& place) {
    mutex_.assert_held();
    if (ends.any()) return;
    holder* work = nullptr;
    show(place, [&](place_state const& state) {
      mutex_.assert_held();
      if (!state.has_stalled || state.may_go_on || state.queue.set_aside() > 0) return;
      auto& first = *state.queue.next_waiting();
      work = find_yielding(place, first).last;
      if (work) return;
      auto* const last = last_with_memory(state.queue);
      auto& one = last ? *last : first;
      place.end_wait(one, ends.woken);
      ends.stalled.add(one);
    });
    if (work) preempt(work, ends);
  });
}

} // namespace gpumem::detail
