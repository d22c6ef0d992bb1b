// Executors: order, taking back, flushing, ending.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/work_item.hpp"

namespace {

using namespace std::chrono_literals;
using test::item;

TEST(work_queue, is_first_in_first_out_and_lets_any_go) {
  gpumem::work_queue queue;
  item a{[] {}}, b{[] {}}, c{[] {}};
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.remove(a)); // not in it
  for (auto* one : {&a, &b, &c}) queue.push(*one);
  EXPECT_TRUE(queue.remove(b));
  EXPECT_FALSE(queue.remove(b));
  EXPECT_EQ(queue.pop(), &a);
  EXPECT_EQ(queue.pop(), &c);
  EXPECT_EQ(queue.pop(), nullptr);
  queue.push(b);
  queue.push(a);
  EXPECT_TRUE(queue.remove(a)); // the last
  queue.push(c);
  EXPECT_EQ(queue.pop(), &b);
  EXPECT_EQ(queue.pop(), &c);
}

TEST(inline_executor, runs_at_the_flush_and_not_at_the_post) {
  gpumem::inline_executor executor;
  int ran = 0;
  item one{[&] { ++ran; }};
  executor.post(one);
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(executor.needs_flush());
  executor.flush();
  EXPECT_EQ(ran, 1);
  executor.flush();
  EXPECT_EQ(ran, 1);
}

TEST(inline_executor, runs_what_is_posted_meanwhile_after_and_not_inside) {
  gpumem::inline_executor executor;
  std::vector<int> order;
  item inner{[&] { order.push_back(2); }};
  item outer{[&] {
    executor.post(inner);
    executor.flush();
    order.push_back(1);
  }};
  executor.post(outer);
  executor.flush();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(inline_executor, runs_inside_the_flush_of_another) {
  gpumem::inline_executor a, b;
  std::vector<int> order;
  item inner{[&] { order.push_back(1); }};
  item outer{[&] {
    b.post(inner);
    b.flush();
    order.push_back(2);
  }};
  a.post(outer);
  a.flush();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(inline_executor, gives_back_what_has_not_begun) {
  gpumem::inline_executor executor;
  item one{[] { ADD_FAILURE() << "it was taken back"; }};
  executor.post(one);
  EXPECT_TRUE(executor.try_cancel(one));
  EXPECT_FALSE(executor.try_cancel(one));
  executor.flush();
}

TEST(thread_executor, runs_in_the_order_of_posting_on_its_own_thread) {
  std::vector<int> order;
  std::vector<std::unique_ptr<item>> items;
  std::thread::id ran_on;
  {
    gpumem::thread_executor executor;
    EXPECT_FALSE(executor.needs_flush());
    for (int i = 0; i < 100; ++i) {
      items.push_back(std::make_unique<item>([&, i] {
        order.push_back(i);
        ran_on = std::this_thread::get_id();
      }));
      executor.post(*items.back());
    }
  } // runs what is queued, then joins
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(thread_executor, gives_back_what_has_not_begun_and_not_what_has) {
  std::atomic<bool> begun{false}, go{false};
  item busy{[&] {
    begun = true;
    while (!go) std::this_thread::yield();
  }};
  item queued{[] { ADD_FAILURE() << "it was taken back"; }};
  gpumem::thread_executor executor;
  executor.post(busy);
  while (!begun) std::this_thread::yield();
  executor.post(queued);
  EXPECT_TRUE(executor.try_cancel(queued));
  EXPECT_FALSE(executor.try_cancel(busy));
  go = true;
}

TEST(thread_executor, may_be_destroyed_by_whoever_it_resumed) {
  // The posting thread is still inside post() when the resumption ends the executor's life.
  for (int round = 0; round < 500; ++round) {
    std::atomic<bool> done{false};
    item one{[&] { done = true; }};
    auto executor = std::make_unique<gpumem::thread_executor>();
    std::thread poster{[&, where = executor.get()] { where->post(one); }};
    while (!done) std::this_thread::yield();
    executor.reset();
    poster.join();
  }
}

TEST(thread_executor, runs_nothing_more_after_stop_within) {
  std::atomic<bool> begun{false}, go{false};
  item busy{[&] {
    begun = true;
    while (!go) std::this_thread::yield();
  }};
  item queued{[] { ADD_FAILURE() << "it was abandoned"; }}, late{[] { ADD_FAILURE() << "it came after"; }};
  gpumem::thread_executor executor;
  executor.post(busy);
  while (!begun) std::this_thread::yield();
  executor.post(queued);
  EXPECT_FALSE(executor.stop_within(1ms)); // busy for longer than that
  go = true;
  EXPECT_TRUE(executor.stop_within(1h));
  executor.post(late);
  EXPECT_TRUE(executor.try_cancel(queued));
  EXPECT_TRUE(executor.try_cancel(late));
}

TEST(default_executor, is_one_for_the_process) {
  auto* const first = &gpumem::default_executor();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(&gpumem::default_executor(), first); });
  for (auto& thread : threads) thread.join();
}

} // namespace
