// waiter_list compared with a plain model of the order: random operations, and each run can be replayed by its seed.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/property/random_source.hpp"
#include "../support/schedule_seeds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::extend::waiter_list;

class item final : public gpumem::extend::waiter {
public:
  item(std::size_t bytes, int priority) : waiter{gpumem::extend::stream_key::host(), bytes, 256, priority} {}
  using waiter::set_cancelled;
  std::vector<item*>* called = nullptr;

private:
  void on_complete() noexcept override { called->push_back(this); }
};

struct entry {
  item* that;
  std::uint64_t arrival;
  gpumem::detail::sync::time_point since;
  unsigned overtaken = 0;
  std::size_t turn = 0;
  std::uint64_t turns_before = 0;
  bool refused = false, alone = false;
};

// The promises of waiter_list, without its shortcuts: all requests in one sorted list.
class model {
public:
  explicit model(unsigned most) : most_{most} {}

  void park(item& one) {
    row_.push_back({&one, ++arrivals_, gpumem::detail::sync::now()});
    std::ranges::sort(row_, [](entry const& a, entry const& b) {
      return std::pair{-std::int64_t{a.that->priority()}, a.arrival} <
             std::pair{-std::int64_t{b.that->priority()}, b.arrival};
    });
  }
  bool remove(item const& one) {
    return std::erase_if(row_, [&](entry const& each) { return each.that == &one; }) > 0;
  }
  std::vector<entry> const& row() const { return row_; }
  entry* find(gpumem::extend::waiter const& one) {
    auto const at = std::ranges::find(row_, &one, &entry::that);
    return at == row_.end() ? nullptr : &*at;
  }
  std::vector<entry*> waiting() {
    std::vector<entry*> without_turn;
    for (auto& each : row_) {
      if (each.turn == 0) without_turn.push_back(&each);
    }
    return without_turn;
  }
  bool all_may_be_overtaken(std::vector<entry*> const& those) const {
    return std::ranges::all_of(those, [&](entry const* each) { return each->overtaken < most_; });
  }
  bool one_is_alone() const { return std::ranges::any_of(row_, &entry::alone); }
  bool may_be_overtaken() { return !one_is_alone() && all_may_be_overtaken(waiting()); }
  void give_turn(item const& one, std::size_t bytes) {
    auto& its = *find(one);
    its.turn = bytes;
    its.turns_before = ++turns_;
    its.alone = its.refused && its.overtaken >= most_;
  }
  void end_turn(item const& one, bool in_vain) {
    auto& its = *find(one);
    its.turn = 0;
    its.alone = false;
    if (!in_vain) return;
    its.refused = true;
    its.overtaken += static_cast<unsigned>(turns_ - its.turns_before);
  }
  template <class May> item* next_for_turn(May may) {
    if (one_is_alone()) return nullptr;
    auto near = waiting();
    near.resize(std::min<std::size_t>(near.size(), std::size_t{most_} + 1));
    auto const found = std::ranges::find_if(near, [&](entry const* each) { return may(*each->that); });
    if (found == near.end() || !all_may_be_overtaken({near.begin(), found})) return nullptr;
    return (*found)->that;
  }
  void count_overtaking(item const* by) {
    for (auto* const each : waiting()) {
      if (each->that == by) return;
      ++each->overtaken;
    }
  }

private:
  unsigned const most_;
  std::vector<entry> row_;
  std::uint64_t arrivals_ = 0, turns_ = 0;
};

struct counts {
  std::uint64_t parked = 0, turns = 0, overtakes = 0, plain = 0, held_up = 0, ended = 0, removed = 0;
};

// A list and its model, to which the same operations are applied.
class twins {
public:
  twins(std::uint64_t seed, counts& seen) : random_{seed}, seen_{seen} {}

  void step() {
    switch (random_.below(8)) {
    case 0:
    case 1: return park();
    case 2: return remove();
    case 3:
    case 4: return give_turn_to_next();
    case 5: return give_turn_to_any();
    case 6: return end_turn();
    default: return overtake_all();
    }
  }

  void expect_same() {
    auto const waiting = model_.waiting();
    auto const* at = list_.first();
    gpumem::extend::waiting_statistics sum;
    std::size_t set_aside = 0;
    for (auto const& each : model_.row()) {
      ASSERT_EQ(at, each.that);
      at = waiter_list::after(*at);
      EXPECT_EQ(waiter_list::has_turn(*each.that), each.turn > 0);
      set_aside += each.turn;
      ++sum.requests;
      sum.bytes += each.that->bytes();
      sum.oldest = std::max(sum.oldest, gpumem::detail::sync::now() - each.since);
    }
    EXPECT_EQ(at, nullptr);
    EXPECT_EQ(list_.empty(), model_.row().empty());
    EXPECT_EQ(list_.set_aside(), set_aside);
    EXPECT_EQ(list_.next_waiting(), waiting.empty() ? nullptr : waiting[0]->that);
    EXPECT_EQ(list_.may_be_overtaken(), model_.may_be_overtaken());
    auto const statistics = list_.read_statistics();
    EXPECT_EQ(statistics.requests, sum.requests);
    EXPECT_EQ(statistics.bytes, sum.bytes);
    EXPECT_EQ(statistics.oldest, sum.oldest);
    for (auto& each : items_) {
      if (each) EXPECT_EQ(waiter_list::holds(*each), model_.find(*each) != nullptr);
    }
    gpumem::detail::sync::schedule_point();
  }

private:
  std::optional<item>& pick() { return items_[random_.below(items_.size())]; }

  void park() {
    auto& one = pick();
    if (one && waiter_list::holds(*one)) return;
    one.emplace(1 + random_.below(1000), random_.of({0, 0, 0, 1, -1, INT_MAX, INT_MIN}));
    if (random_.one_in(10)) {
      one->set_cancelled(gpumem::outcome::stopped);
      EXPECT_FALSE(list_.park(*one));
      return;
    }
    EXPECT_TRUE(list_.park(*one));
    model_.park(*one);
    ++seen_.parked;
  }
  void remove() {
    auto& one = pick();
    if (!one) return;
    bool const held = model_.remove(*one);
    EXPECT_EQ(list_.remove(*one), held);
    seen_.removed += held;
  }
  // Gives a turn as a resource does: to the first request that it can grant.
  void give_turn_to_next() {
    auto const chosen = random_.next() & random_.next();
    auto const may = [&](gpumem::extend::waiter const& one) { return (chosen >> (one.bytes() % 64) & 1) != 0; };
    auto* const next = model_.next_for_turn(may);
    ASSERT_EQ(list_.next_for_turn(may), next);
    if (!next) {
      seen_.held_up += std::ranges::any_of(model_.waiting(), [&](entry const* each) { return may(*each->that); });
      return;
    }
    seen_.overtakes += list_.next_waiting() != next;
    list_.count_overtaking(next);
    model_.count_overtaking(next);
    give_turn(*next);
  }
  // Gives a turn as to a request that cannot be granted any more: it overtakes no request.
  void give_turn_to_any() {
    auto const& one = pick();
    if (!random_.one_in(4) || !one || !waiter_list::holds(*one) || waiter_list::has_turn(*one)) return;
    give_turn(*model_.find(*one)->that);
  }
  void give_turn(item& one) {
    auto const bytes = 1 + random_.below(1000);
    list_.give_turn(one, bytes);
    model_.give_turn(one, bytes);
    ++seen_.turns;
  }
  void end_turn() {
    auto& one = pick();
    if (!one || !waiter_list::holds(*one) || !waiter_list::has_turn(*one)) return;
    bool const in_vain = random_.one_in(2);
    list_.end_turn(*one, in_vain);
    model_.end_turn(*one, in_vain);
    ++seen_.ended;
  }
  void overtake_all() {
    if (!list_.may_be_overtaken()) return;
    list_.count_overtaking();
    model_.count_overtaking(nullptr);
    ++seen_.plain;
  }

  gpumem_test::random_source random_;
  counts& seen_;
  unsigned const most_ = random_.of({0u, 1u, 2u, 3u, 16u});
  waiter_list list_{most_};
  model model_{most_};
  std::array<std::optional<item>, 10> items_;
};

TEST(waiter_list, random_operations_match_a_model) {
  test::schedule_seeds const seeds{300, 5};
  counts seen;
  seeds.each([&](std::uint64_t seed) {
    SCOPED_TRACE("GPUMEM_SEED=" + std::to_string(seed));
    twins both{seed, seen};
    for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
      both.step();
      both.expect_same();
    }
    ASSERT_FALSE(testing::Test::HasFailure());
  });
  std::printf(
      "%llu parked, %llu turns, %llu of them overtook, %llu held up; %llu turns ended, %llu removed, %llu times "
      "all were overtaken\n",
      static_cast<unsigned long long>(seen.parked), static_cast<unsigned long long>(seen.turns),
      static_cast<unsigned long long>(seen.overtakes), static_cast<unsigned long long>(seen.held_up),
      static_cast<unsigned long long>(seen.ended), static_cast<unsigned long long>(seen.removed),
      static_cast<unsigned long long>(seen.plain));
  if (seeds.alone()) return;
  for (auto const each :
       {seen.parked, seen.turns, seen.overtakes, seen.held_up, seen.ended, seen.removed, seen.plain}) {
    EXPECT_GT(each, seeds.count());
  }
}

// A unit of work; its requests have its age.
class unit final : public gpumem::extend::holder {
public:
  unit() : holder{"", 0} {}
};

// Parks a request of each of `count` units of work, and removes all of them. `unit_of(i)`: the unit, from the oldest
// on, whose request is parked as number i. Returns the steps.
template <class UnitOf> std::uint64_t steps_of(std::size_t count, UnitOf unit_of) {
  std::deque<unit> work(count);
  std::deque<item> items;
  waiter_list list;
  for (std::size_t i = 0; i < count; ++i) {
    auto& parked = items.emplace_back(1, 0);
    parked.set_holder(work[unit_of(i)]);
    EXPECT_TRUE(list.park(parked));
  }
  auto const* at = list.first();
  for (auto const& each : work) {
    EXPECT_EQ(at->holder(), &each);
    at = waiter_list::after(*at);
  }
  for (auto& each : items) list.remove(each);
  EXPECT_TRUE(list.empty());
  return list.comparisons();
}

TEST(waiter_list, requests_are_parked_in_any_order_in_few_steps) {
  constexpr std::size_t count = 4000;
  auto const in_order = steps_of(count, [](std::size_t i) { return i; });
  auto const reverse = steps_of(count, [](std::size_t i) { return count - 1 - i; });
  auto const from_both_ends = steps_of(count, [](std::size_t i) { return i % 2 ? count - 1 - i / 2 : i / 2; });
  auto const scattered = steps_of(count, [](std::size_t i) { return i * 1597 % count; });
  std::printf("steps: %llu in order, %llu in reverse order, %llu from both ends, %llu scattered\n",
              static_cast<unsigned long long>(in_order), static_cast<unsigned long long>(reverse),
              static_cast<unsigned long long>(from_both_ends), static_cast<unsigned long long>(scattered));
  for (auto const each : {in_order, reverse, from_both_ends, scattered}) {
    EXPECT_LE(each, 2 * in_order);
    EXPECT_LE(each, count * 100);
  }
}

TEST(waiter_list, requests_of_one_unit_keep_their_order) {
  unit work;
  std::deque<item> items;
  waiter_list list;
  for (int i = 0; i < 100; ++i) {
    items.emplace_back(1, 0).set_holder(work);
    list.park(items.back());
  }
  list.give_turn(items[0], 1);
  list.give_turn(items[1], 1);
  list.end_turn(items[0], false);
  EXPECT_EQ(list.next_waiting(), &items[0]);
  list.end_turn(items[1], false);
  auto const* at = list.first();
  for (auto const& each : items) {
    EXPECT_EQ(at, &each);
    at = waiter_list::after(*at);
  }
  for (auto& each : items) list.remove(each);
}

TEST(woken_waiters, waiters_are_woken_once_in_the_order_of_addition) {
  std::vector<item*> called;
  std::vector<std::optional<item>> items(5);
  {
    gpumem::extend::woken_waiters calls;
    for (auto& each : items) {
      each.emplace(1, 0).called = &called;
      calls.add(*each);
    }
    EXPECT_TRUE(called.empty());
  }
  ASSERT_EQ(called.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(called[i], &*items[i]);
}

} // namespace
