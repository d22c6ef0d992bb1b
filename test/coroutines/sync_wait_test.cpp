// sync_wait, and the kinds of awaitables that it and tasks accept.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"

namespace {

// An awaiter itself.
struct operation {
  int value;
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  int await_resume() const noexcept { return value; }
};
// Has a member operator co_await, which is const.
struct by_member {
  operation operator co_await() const noexcept { return {2}; }
};
// Has a free operator co_await.
struct by_function {};
operation operator co_await(by_function) noexcept { return {3}; }
// Can be awaited only as an rvalue, and returns an rvalue reference.
struct expiring {
  struct moved {
    std::unique_ptr<int> value;
    bool await_ready() const noexcept { return true; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    std::unique_ptr<int>&& await_resume() noexcept { return std::move(value); }
  };
  moved operator co_await() && { return {std::make_unique<int>(4)}; }
};
// await_suspend may also return a bool or a handle.
struct not_after_all {
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<>) const noexcept { return false; }
  int await_resume() const noexcept { return 5; }
};
struct back_at_once {
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> h) const noexcept { return h; }
  int await_resume() const noexcept { return 6; }
};

using gpumem::sync_wait;
using gpumem::task;

TEST(sync_wait, accepts_every_kind_of_awaitable) {
  EXPECT_EQ(sync_wait(operation{1}), 1);
  EXPECT_EQ(sync_wait(by_member{}), 2);
  by_member const by_name;
  EXPECT_EQ(sync_wait(by_name), 2);
  EXPECT_EQ(sync_wait(by_function{}), 3);
  EXPECT_EQ(*sync_wait(expiring{}), 4);
  EXPECT_EQ(sync_wait(not_after_all{}), 5);
  EXPECT_EQ(sync_wait(back_at_once{}), 6);
}

TEST(sync_wait, tasks_and_when_all_accept_every_kind_of_awaitable) {
  auto body = []() -> task<int> {
    co_return co_await operation{1} + co_await by_member{} + co_await by_function{} + *co_await expiring{} +
        co_await not_after_all{} + co_await back_at_once{};
  };
  EXPECT_EQ(sync_wait(body()), 21);
  auto [a, b, c, d] = sync_wait(gpumem::when_all(by_member{}, by_function{}, expiring{}, back_at_once{}));
  EXPECT_EQ(a + b + *c + d, 15);
}

TEST(sync_wait, blocks_until_another_thread_ends_it) {
  gpumem::thread_executor elsewhere;
  auto body = [&]() -> task<std::thread::id> {
    co_await test::hop{elsewhere};
    co_return std::this_thread::get_id();
  };
  for (int round = 0; round < 2000; ++round) ASSERT_NE(sync_wait(body()), std::this_thread::get_id());
}

TEST(sync_wait, exception_of_another_thread_is_rethrown) {
  gpumem::thread_executor elsewhere;
  auto body = [&]() -> task<int> {
    co_await test::hop{elsewhere};
    throw std::runtime_error{"there"};
  };
  for (int round = 0; round < 200; ++round) ASSERT_THROW(sync_wait(body()), std::runtime_error);
}

TEST(sync_wait, million_resumptions_do_not_grow_the_stack) {
  gpumem::thread_executor elsewhere;
  auto body = [&]() -> task<int> {
    int hops = 0;
    for (; hops < 1'000'000; ++hops) co_await test::hop{elsewhere};
    co_return hops;
  };
  EXPECT_EQ(sync_wait(body()), 1'000'000);
}

TEST(sync_wait, can_be_called_inside_a_coroutine_that_it_waits_for) {
  auto inner = []() -> task<int> { co_return 1; };
  auto body = [&]() -> task<int> { co_return sync_wait(inner()) + co_await inner(); };
  EXPECT_EQ(sync_wait(body()), 2);
}

} // namespace
