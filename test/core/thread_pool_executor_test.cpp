// An executor with several threads: it runs all items, in parallel if possible, and items that have not begun can be
// cancelled.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/work_item.hpp"

namespace {

using test::item;

TEST(thread_pool_executor, has_the_requested_number_of_threads) {
  gpumem::thread_pool_executor executor{3};
  EXPECT_EQ(executor.size(), 3u);
  EXPECT_FALSE(executor.needs_flush());
  EXPECT_THROW(gpumem::thread_pool_executor{0}, std::invalid_argument);
}

TEST(thread_pool_executor, destructor_runs_all_work_items) {
  std::atomic<int> ran{0};
  std::vector<std::unique_ptr<item>> items;
  for (int i = 0; i < 500; ++i) items.push_back(std::make_unique<item>([&] { ++ran; }));
  {
    gpumem::thread_pool_executor executor{4};
    for (auto& one : items) executor.post(*one);
  }
  EXPECT_EQ(ran, 500);
}

TEST(thread_pool_executor, runs_one_work_item_per_thread_at_once) {
  constexpr int threads = 4;
  gpumem::thread_pool_executor executor{threads};
  std::atomic<int> inside{0};
  std::mutex guard;
  std::set<std::thread::id> seen;
  auto meet = [&] {
    ++inside;
    while (inside < threads) std::this_thread::yield(); // a thread leaves only when all are inside
    std::scoped_lock const held{guard};
    seen.insert(std::this_thread::get_id());
  };
  std::vector<std::unique_ptr<item>> items;
  for (int i = 0; i < threads; ++i) items.push_back(std::make_unique<item>(meet));
  for (auto& one : items) executor.post(*one);
  for (bool all = false; !all;) {
    std::scoped_lock const held{guard};
    all = seen.size() == threads;
  }
  EXPECT_FALSE(seen.contains(std::this_thread::get_id()));
}

TEST(thread_pool_executor, work_item_can_be_cancelled_only_before_it_begins) {
  std::atomic<int> begun{0};
  std::atomic<bool> go{false};
  auto wait = [&] {
    ++begun;
    while (!go) std::this_thread::yield();
  };
  item first{wait}, second{wait};
  item queued{[] { ADD_FAILURE() << "it was cancelled"; }};
  gpumem::thread_pool_executor executor{2};
  executor.post(first);
  executor.post(second);
  while (begun < 2) std::this_thread::yield();
  executor.post(queued);
  EXPECT_TRUE(executor.try_cancel(queued));
  EXPECT_FALSE(executor.try_cancel(queued));
  EXPECT_FALSE(executor.try_cancel(first));
  go = true;
}

TEST(thread_pool_executor, runs_work_items_posted_by_a_work_item) {
  std::atomic<int> ran{0};
  {
    gpumem::thread_pool_executor executor{2};
    std::atomic<bool> posted{false};
    item inner{[&] { ++ran; }};
    item outer{[&] {
      executor.post(inner);
      posted = true;
    }};
    executor.post(outer);
    while (!posted || ran < 1) std::this_thread::yield();
  }
  EXPECT_EQ(ran, 1);
}

TEST(thread_pool_executor, can_be_destroyed_once_its_work_item_ran) {
  // The posting thread is still inside post() when the work item lets the executor be destroyed.
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> done{false};
    item one{[&] { done = true; }};
    auto executor = std::make_unique<gpumem::thread_pool_executor>(2);
    std::thread poster{[&, where = executor.get()] { where->post(one); }};
    while (!done) std::this_thread::yield();
    executor.reset();
    poster.join();
  }
}

} // namespace
