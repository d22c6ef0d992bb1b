// when_all: awaiting several tasks at once.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"

namespace {

using gpumem::sync_wait;
using gpumem::task;
using gpumem::when_all;
using test::hop;
using test::parked;
using test::start;

task<int> give(int value) { co_return value; }
task<> nothing() { co_return; }

TEST(when_all, returns_a_tuple_in_argument_order) {
  int number = 5;
  auto reference = [&]() -> task<int&> { co_return number; };
  auto text = []() -> task<std::string> { co_return "b"; };
  auto [a, b, c, d] = sync_wait(when_all(give(1), text(), nothing(), reference()));
  static_assert(std::is_same_v<decltype(c), std::monostate>);
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, "b");
  EXPECT_EQ(&d.get(), &number);
}

TEST(when_all, is_awaited_once_and_not_after_a_move) {
  auto both = when_all(give(1), give(2));
  auto moved = std::move(both);
  EXPECT_THROW(sync_wait(both), std::logic_error); // the moved-from state is tested
  EXPECT_EQ(sync_wait(moved), (std::tuple{1, 2}));
  EXPECT_THROW(sync_wait(moved), std::logic_error);
}

TEST(when_all, returns_a_vector_or_void) {
  std::vector<task<int>> numbers;
  for (int i = 0; i < 100; ++i) numbers.push_back(give(i));
  auto const results = sync_wait(when_all(std::move(numbers)));
  ASSERT_EQ(results.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(results[static_cast<std::size_t>(i)], i);

  std::vector<task<>> voids;
  for (int i = 0; i < 3; ++i) voids.push_back(nothing());
  static_assert(std::is_void_v<decltype(sync_wait(when_all(std::move(voids))))>);
  sync_wait(when_all(std::move(voids)));
}

TEST(when_all, is_ready_for_no_arguments) {
  EXPECT_EQ(sync_wait(when_all()), std::tuple<>{});
  EXPECT_TRUE(sync_wait(when_all(std::vector<task<int>>{})).empty());
}

TEST(when_all, children_begin_in_order_when_it_is_awaited) {
  std::vector<int> order;
  auto note = [&](int i) -> task<> {
    order.push_back(i);
    co_return;
  };
  auto all = when_all(note(1), note(2), note(3));
  EXPECT_TRUE(order.empty());
  sync_wait(std::move(all));
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(when_all, first_exception_is_thrown_after_all_children_ended) {
  std::coroutine_handle<> first, second;
  bool third_finished = false;
  auto late = [&](std::coroutine_handle<>* place, char const* what) -> task<> {
    co_await parked{place};
    throw std::runtime_error{what};
  };
  auto good = [&]() -> task<> {
    third_finished = true;
    co_return;
  };
  auto body = [&]() -> task<std::string> {
    try {
      co_await when_all(late(&first, "first argument"), late(&second, "first in time"), good());
    } catch (std::runtime_error const& e) { co_return e.what(); }
    co_return "nothing was thrown";
  };
  std::string caught;
  auto outer = [&]() -> task<> { caught = co_await body(); };
  auto const running = start(outer());
  ASSERT_TRUE(third_finished);
  second.resume();
  EXPECT_FALSE(running.done()); // the other task has not finished
  EXPECT_EQ(caught, "");
  first.resume();
  EXPECT_TRUE(running.done());
  EXPECT_EQ(caught, "first in time");
}

TEST(when_all, destruction_destroys_all_children) {
  auto alive = std::make_shared<int>(0);
  std::coroutine_handle<> places[2];
  auto waits = [](std::shared_ptr<int> held, std::coroutine_handle<>* place) -> task<> {
    auto const local = held;
    co_await parked{place};
  };
  auto body = [&]() -> task<> { co_await when_all(waits(alive, &places[0]), waits(alive, &places[1])); };
  auto running = start(body());
  EXPECT_EQ(alive.use_count(), 5);
  running.destroy();
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(when_all, continues_on_the_thread_that_ended_last) {
  // Each task runs on an executor of its own; all results are available, whichever task ended last.
  gpumem::thread_executor a, b;
  auto on = [](gpumem::executor* where, int value) -> task<int> {
    co_await hop{*where};
    co_return value;
  };
  for (int round = 0; round < 2000; ++round) {
    auto const [x, y, z] = sync_wait(when_all(on(&a, round), on(&b, round + 1), give(round + 2)));
    ASSERT_EQ(std::tuple(x, y, z), std::tuple(round, round + 1, round + 2));
  }
}

TEST(when_all, can_be_nested) {
  auto const [left, right] = sync_wait(when_all(when_all(give(1), give(2)), when_all(give(3), give(4))));
  EXPECT_EQ(left, (std::tuple{1, 2}));
  EXPECT_EQ(right, (std::tuple{3, 4}));
}

} // namespace
