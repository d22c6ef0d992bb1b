// A user's job system as an executor.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/work_item.hpp"

namespace {

using test::item;

// A job system that keeps jobs until the test runs them.
class job_system {
public:
  void post(std::function<void()> job) {
    std::scoped_lock const held{mutex_};
    jobs_.push_back(std::move(job));
  }
  bool run_one() {
    std::function<void()> job;
    {
      std::scoped_lock const held{mutex_};
      if (jobs_.empty()) return false;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
    return true;
  }
  std::size_t size() {
    std::scoped_lock const held{mutex_};
    return jobs_.size();
  }

private:
  std::mutex mutex_;
  std::deque<std::function<void()>> jobs_;
};

TEST(executor_adaptor, each_job_runs_one_work_item_in_posting_order) {
  job_system jobs;
  gpumem::executor_adaptor executor{[&](auto job) { jobs.post(std::move(job)); }};
  EXPECT_FALSE(executor.needs_flush());
  std::vector<int> order;
  item one{[&] { order.push_back(1); }}, two{[&] { order.push_back(2); }};
  executor.post(one);
  executor.post(two);
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(jobs.size(), 2u);
  jobs.run_one();
  EXPECT_EQ(order, std::vector{1});
  jobs.run_one();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(executor_adaptor, job_of_a_cancelled_work_item_runs_nothing) {
  job_system jobs;
  int ran = 0;
  item one{[] { ADD_FAILURE() << "it was cancelled"; }}, two{[&] { ++ran; }};
  {
    gpumem::executor_adaptor executor{[&](auto job) { jobs.post(std::move(job)); }};
    executor.post(one);
    executor.post(two);
    EXPECT_TRUE(executor.try_cancel(one));
    EXPECT_FALSE(executor.try_cancel(one));
    jobs.run_one();
    EXPECT_EQ(ran, 1);
    EXPECT_FALSE(executor.try_cancel(two));
  }
  EXPECT_TRUE(jobs.run_one()); // the job outlives the executor
  EXPECT_EQ(ran, 1);
}

TEST(executor_adaptor, can_be_destroyed_by_a_work_item_that_it_runs) {
  job_system jobs;
  auto post = [&](gpumem::extend::executor_job job) noexcept { jobs.post(job); };
  std::optional<gpumem::executor_adaptor<decltype(post)>> executor{std::in_place, post};
  item last{[&] { executor.reset(); }};
  executor->post(last);
  jobs.run_one();
  EXPECT_FALSE(executor.has_value());
}

TEST(executor_adaptor, can_be_destroyed_by_a_job_that_runs_inside_its_function) {
  // Breaks the rule that the job must run later. The function still has its captures.
  auto const captured = std::make_shared<int>(1);
  bool ended = false;
  auto post = [&ended, mine = captured](gpumem::extend::executor_job const& job) noexcept {
    job();
    EXPECT_TRUE(ended);
    EXPECT_EQ(mine.use_count(), 2);
  };
  std::optional<gpumem::executor_adaptor<decltype(post)>> executor{std::in_place, std::move(post)};
  auto* const where = &*executor;
  item last{[&] {
    executor.reset();
    ended = true;
  }};
  where->post(last);
  EXPECT_TRUE(ended);
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(executor_adaptor, function_is_destroyed_while_jobs_remain) {
  auto const jobs = std::make_shared<job_system>();
  item one{[] { ADD_FAILURE() << "it was cancelled"; }};
  {
    gpumem::executor_adaptor executor{[jobs](auto job) { jobs->post(std::move(job)); }};
    executor.post(one);
    EXPECT_TRUE(executor.try_cancel(one));
  }
  EXPECT_EQ(jobs.use_count(), 1); // the remaining job does not keep the job system alive
  EXPECT_TRUE(jobs->run_one());
}

TEST(executor_adaptor, work_item_refused_by_the_job_system_runs_on_the_library_thread) {
  std::atomic<int> ran{0};
  std::atomic<bool> refuses{true};
  job_system jobs;
  gpumem::executor_adaptor executor{[&](auto job) {
    if (refuses) throw std::bad_alloc{};
    jobs.post(std::move(job));
  }};
  std::thread::id where;
  item first{[&] {
    where = std::this_thread::get_id();
    ++ran;
  }};
  executor.post(first);
  while (ran < 1) std::this_thread::yield();
  EXPECT_NE(where, std::this_thread::get_id());

  item again{[&] { ++ran; }};
  executor.post(again);
  while (ran < 2) std::this_thread::yield();

  refuses = false;
  item taken{[&] { ++ran; }};
  executor.post(taken);
  EXPECT_TRUE(jobs.run_one());
  EXPECT_EQ(ran, 3);
}

TEST(executor_adaptor, work_item_on_the_library_thread_can_be_cancelled_before_it_begins) {
  std::atomic<bool> begun{false}, go{false};
  item busy{[&] {
    begun = true;
    while (!go) std::this_thread::yield();
  }};
  item refused{[] { ADD_FAILURE() << "it was cancelled"; }};
  gpumem::default_executor().post(busy);
  while (!begun) std::this_thread::yield();
  {
    gpumem::executor_adaptor executor{[](gpumem::extend::executor_job const&) { throw std::bad_alloc{}; }};
    executor.post(refused);
    EXPECT_TRUE(executor.try_cancel(refused));
  } // the job outlives the executor
  go = true;
  std::atomic<bool> after{false};
  item behind{[&] { after = true; }};
  gpumem::default_executor().post(behind);
  while (!after) std::this_thread::yield();
}

} // namespace
