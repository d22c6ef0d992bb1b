// Threads that start together and are timed together, and their errors.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

import replay;

namespace {

auto const no_setup = [](std::function<void()> const& member) { member(); };

TEST(thread_team, every_member_runs_each_pass_once_on_a_thread_of_its_own) {
  replay::thread_team thread_team{4, no_setup};
  std::vector<std::thread::id> first(4);
  std::vector<std::thread::id> second(4);
  thread_team.run([&](unsigned member) { first[member] = std::this_thread::get_id(); });
  thread_team.run([&](unsigned member) { second[member] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 4U);
}

TEST(thread_team, members_run_at_the_same_time) {
  replay::thread_team thread_team{3, no_setup};
  std::latch all{3};
  thread_team.run([&](unsigned) { all.arrive_and_wait(); }); // returns only if all three are inside
  EXPECT_TRUE(all.try_wait());
}

TEST(thread_team, time_spans_all_members) {
  replay::thread_team thread_team{2, no_setup};
  std::atomic<bool> one_ended = false;
  double const nanoseconds = thread_team.run([&](unsigned member) {
    if (member == 0) {
      one_ended = true;
    } else {
      while (!one_ended) std::this_thread::yield();
      auto const begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds{2}) std::this_thread::yield();
    }
  });
  EXPECT_GE(nanoseconds, 2e6);
}

TEST(thread_team, exception_of_a_member_is_thrown_after_all_ended) {
  replay::thread_team thread_team{3, no_setup};
  std::atomic<int> ended = 0;
  auto const body = [&](unsigned member) {
    ++ended;
    if (member == 2) throw std::runtime_error("two");
  };
  EXPECT_THROW(thread_team.run(body), std::runtime_error);
  EXPECT_EQ(ended, 3);
  EXPECT_NO_THROW(thread_team.run([](unsigned) {}));
}

TEST(thread_team, member_that_fails_its_setup_throws_in_its_first_pass) {
  replay::thread_team thread_team{2, [](std::function<void()> const&) { throw std::runtime_error("no device"); }};
  EXPECT_THROW(thread_team.run([](unsigned) {}), std::runtime_error);
}

} // namespace
