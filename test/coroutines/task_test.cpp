// Tasks: lazy start, results, exceptions, lifetime, and a stack that does not grow.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"

namespace {

using gpumem::sync_wait;
using gpumem::task;
using test::parked;
using test::start;

task<int> give(int value) { co_return value; }

TEST(task, begins_when_it_is_awaited) {
  bool begun = false;
  auto body = [&]() -> task<> {
    begun = true;
    co_return;
  };
  auto lazy = body();
  EXPECT_FALSE(begun);
  EXPECT_FALSE(lazy.done());
  sync_wait(std::move(lazy));
  EXPECT_TRUE(begun);
}

TEST(task, returns_a_value_a_reference_or_void) {
  std::string text = "a";
  auto reference = [&]() -> task<std::string&> { co_return text; };
  auto moved = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(7); };
  EXPECT_EQ(sync_wait(give(3)), 3);
  EXPECT_EQ(&sync_wait(reference()), &text);
  EXPECT_EQ(*sync_wait(moved()), 7);
  static_assert(std::is_void_v<decltype(sync_wait(std::declval<task<>>()))>);
}

TEST(task, awaited_lvalue_keeps_its_result) {
  auto body = []() -> task<std::string> { co_return "kept"; };
  auto one = body();
  std::string& inside = sync_wait(one);
  EXPECT_EQ(inside, "kept");
  EXPECT_TRUE(one.done());
  EXPECT_EQ(inside, "kept") << "it stays in the task";
}

TEST(task, second_await_is_an_error) {
  auto one = give(1);
  EXPECT_EQ(sync_wait(one), 1);
  EXPECT_THROW(sync_wait(one), std::logic_error) << "it has ended";
  EXPECT_THROW(sync_wait(std::move(one)), std::logic_error);

  std::coroutine_handle<> inner;
  bool ended = false;
  auto waits = [&]() -> task<> {
    co_await parked{&inner};
    ended = true;
  };
  auto shared = waits();
  auto awaits = [&]() -> task<> { co_await shared; };
  auto first = start(awaits());
  EXPECT_THROW(sync_wait(awaits()), std::logic_error) << "it runs";
  EXPECT_FALSE(ended);
  inner.resume();
  EXPECT_TRUE(ended && first.done()) << "the first await is not disturbed";
  first.destroy();
}

TEST(task, exception_of_the_body_is_rethrown) {
  auto at_once = []() -> task<int> {
    throw std::runtime_error{"at once"};
    co_return 0;
  };
  auto nested = [&]() -> task<int> { co_return 1 + co_await at_once(); };
  EXPECT_THROW(sync_wait(at_once()), std::runtime_error);
  EXPECT_THROW(sync_wait(nested()), std::runtime_error);
  auto caught = [&]() -> task<std::string> {
    try {
      co_await nested();
    } catch (std::runtime_error const& e) { co_return e.what(); }
    co_return "nothing";
  };
  EXPECT_EQ(sync_wait(caught()), "at once");
}

TEST(task, exceptions_of_await_functions_are_rethrown) {
  struct thrower {
    int where;
    bool await_ready() const { return where == 0 ? throw std::runtime_error{"ready"} : where == 2; }
    void await_suspend(std::coroutine_handle<>) const { throw std::runtime_error{"suspend"}; }
    void await_resume() const { throw std::runtime_error{"resume"}; }
  };
  auto body = [](int where) -> task<> { co_await thrower{where}; };
  for (int where : {0, 1, 2}) EXPECT_THROW(sync_wait(body(where)), std::runtime_error) << where;
}

TEST(task, moved_from_task_cannot_be_awaited) {
  auto one = give(1);
  auto other = std::move(one);
  EXPECT_FALSE(one.valid()); // the moved-from state is tested
  EXPECT_TRUE(other.valid());
  EXPECT_THROW(sync_wait(std::move(one)), std::logic_error);
  EXPECT_EQ(sync_wait(std::move(other)), 1);
}

TEST(task, destructor_destroys_the_frame_at_any_point) {
  auto alive = std::make_shared<int>(0);
  auto waits = [](std::shared_ptr<int> held, std::coroutine_handle<>* place) -> task<> {
    auto const local = held;
    co_await parked{place};
  };
  std::coroutine_handle<> inner;
  { auto never_begun = waits(alive, &inner); }
  EXPECT_EQ(alive.use_count(), 1);

  auto outer = [&](std::shared_ptr<int> held) -> task<> {
    auto const local = held;
    co_await waits(held, &inner);
  };
  auto running = start(outer(alive));
  EXPECT_EQ(alive.use_count(), 5);
  running.destroy(); // two tasks deep, suspended in parked
  EXPECT_EQ(alive.use_count(), 1);

  auto finished = start(outer(alive));
  inner.resume();
  EXPECT_TRUE(finished.done());
  finished.destroy();
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(task, assignment_destroys_the_previous_frame) {
  auto alive = std::make_shared<int>(0);
  auto holds = [](std::shared_ptr<int> held) -> task<int> { co_return *held; };
  auto one = holds(alive);
  EXPECT_EQ(alive.use_count(), 2);
  one = give(2);
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_EQ(sync_wait(std::move(one)), 2);
}

// Returns the current position of the stack.
std::uintptr_t stack_position() { return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)); }

task<std::uintptr_t> one_step() { co_return stack_position(); }

TEST(task, million_awaits_do_not_grow_the_stack) {
  auto many = []() -> task<std::pair<std::uintptr_t, std::uintptr_t>> {
    auto lowest = co_await one_step();
    auto highest = lowest;
    for (int i = 0; i < 1'000'000; ++i) {
      auto const now = co_await one_step();
      lowest = std::min(lowest, now);
      highest = std::max(highest, now);
    }
    co_return std::pair{lowest, highest};
  };
  auto const [lowest, highest] = sync_wait(many());
  EXPECT_LT(highest - lowest, 1024u);
}

TEST(task, long_chain_of_returns_does_not_grow_the_stack) {
  // If each await used a stack frame, this would need tens of megabytes.
  struct chain {
    static task<int> of(int depth) { co_return depth == 0 ? 0 : 1 + co_await of(depth - 1); }
  };
  EXPECT_EQ(sync_wait(chain::of(300'000)), 300'000);
}

} // namespace
