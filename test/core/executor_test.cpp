// Executors: order, cancelling, flushing, stopping.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sys/prctl.h>

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

TEST(work_queue, is_first_in_first_out_and_any_item_can_be_removed) {
  gpumem::extend::work_queue queue;
  item a{[] {}}, b{[] {}}, c{[] {}};
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.remove(a)); // not in the queue
  for (auto* one : {&a, &b, &c}) queue.push(*one);
  EXPECT_TRUE(queue.remove(b));
  EXPECT_FALSE(queue.remove(b));
  EXPECT_EQ(queue.pop(), &a);
  EXPECT_EQ(queue.pop(), &c);
  EXPECT_EQ(queue.pop(), nullptr);
  queue.push(b);
  queue.push(a);
  EXPECT_TRUE(queue.remove(a)); // the last element
  queue.push(c);
  EXPECT_EQ(queue.pop(), &b);
  EXPECT_EQ(queue.pop(), &c);
}

TEST(inline_executor, runs_work_items_at_the_flush_only) {
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

TEST(inline_executor, work_item_posted_by_another_runs_after_it) {
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

TEST(inline_executor, flush_inside_the_flush_of_another_executor_runs_its_items) {
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

TEST(inline_executor, work_item_can_be_cancelled_before_it_begins) {
  gpumem::inline_executor executor;
  item one{[] { ADD_FAILURE() << "it was cancelled"; }};
  executor.post(one);
  EXPECT_TRUE(executor.try_cancel(one));
  EXPECT_FALSE(executor.try_cancel(one));
  executor.flush();
}

TEST(thread_executor, runs_work_items_in_posting_order_on_its_own_thread) {
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
  } // runs the queued items, then joins
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(thread_executor, does_not_change_how_late_sleeps_of_its_thread_may_end) {
  int slack = 0;
  item one{[&] { slack = prctl(PR_GET_TIMERSLACK); }};
  {
    gpumem::thread_executor executor;
    executor.post(one);
  }
  EXPECT_EQ(slack, prctl(PR_GET_TIMERSLACK));
}

TEST(thread_executor, work_item_can_be_cancelled_only_before_it_begins) {
  std::atomic<bool> begun{false}, go{false};
  item busy{[&] {
    begun = true;
    while (!go) std::this_thread::yield();
  }};
  item queued{[] { ADD_FAILURE() << "it was cancelled"; }};
  gpumem::thread_executor executor;
  executor.post(busy);
  while (!begun) std::this_thread::yield();
  executor.post(queued);
  EXPECT_TRUE(executor.try_cancel(queued));
  EXPECT_FALSE(executor.try_cancel(busy));
  go = true;
}

TEST(thread_executor, can_be_destroyed_once_its_work_item_ran) {
  // The posting thread is still inside post() when the work item lets the executor be destroyed.
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

TEST(thread_executor, no_work_item_runs_after_stop_within) {
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

TEST(default_executor, is_shared_by_the_process) {
  auto* const first = &gpumem::default_executor();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(&gpumem::default_executor(), first); });
  for (auto& thread : threads) thread.join();
}

} // namespace
