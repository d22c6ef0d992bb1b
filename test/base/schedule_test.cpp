// Schedules: real threads of which one runs at a time, chosen by a seed, and the same seed gives the same run.
// SPDX-License-Identifier: Apache-2.0
#include "../support/choices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

import gpumem;

namespace {

using namespace std::chrono_literals;
namespace sync = gpumem::detail::sync;
namespace schedule = gpumem::detail::schedule;

// Returns the order in which three threads run: one letter per step.
std::string order_of(std::uint64_t seed) {
  std::string order;
  std::vector<std::function<void()>> bodies;
  for (char name : {'a', 'b', 'c'}) {
    bodies.emplace_back([&order, name] {
      for (int i = 0; i < 8; ++i) {
        sync::schedule_point();
        order += name;
      }
    });
  }
  schedule::run(seed, std::move(bodies));
  return order;
}

TEST(schedule, equal_seeds_give_equal_sequences) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) ASSERT_EQ(order_of(seed), order_of(seed)) << seed;
}

TEST(schedule, different_seeds_give_different_sequences) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) seen.insert(order_of(seed));
  EXPECT_GT(seen.size(), 190u);
}

// Two threads of two steps each have six orders (two of four steps), two of which need no preemption.
TEST(schedule, exhaustive_search_visits_every_sequence) {
  auto const orders_with = [](unsigned most_preemptions) {
    std::multiset<std::string> seen;
    gpumem_test::choices path{most_preemptions};
    do {
      std::string order;
      auto const stepping = [&order](char name) {
        return [&order, name] {
          order += name;
          sync::schedule_point();
          order += name;
        };
      };
      schedule::run([&](std::size_t candidates, bool may_stay) { return path.choose(candidates, may_stay); },
                    {stepping('a'), stepping('b')});
      EXPECT_FALSE(path.diverged()) << order;
      seen.insert(order);
    } while (path.next());
    return seen;
  };
  EXPECT_EQ(orders_with(2), (std::multiset<std::string>{"aabb", "abab", "abba", "baab", "baba", "bbaa"}));
  EXPECT_EQ(orders_with(0), (std::multiset<std::string>{"aabb", "bbaa"}));
}

TEST(schedule, one_thread_runs_at_a_time) {
  // The counter has no guard except the schedule: a second thread between two schedule points would be seen.
  int inside = 0, most = 0;
  auto body = [&] {
    for (int i = 0; i < 100; ++i) {
      ++inside;
      most = std::max(most, inside);
      --inside;
      sync::schedule_point();
    }
  };
  auto const result = schedule::run(1, {body, body, body});
  EXPECT_EQ(most, 1);
  EXPECT_GE(result.marks, 300u);
  EXPECT_GT(result.switches, 100u);
}

TEST(schedule, lost_update_of_a_counter_is_found) {
  // The purpose of schedules: some seeds lose an update, some do not.
  int lost = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    int count = 0;
    auto body = [&] {
      for (int i = 0; i < 3; ++i) {
        auto const read = count;
        sync::schedule_point();
        count = read + 1;
      }
    };
    schedule::run(seed, {body, body});
    lost += count < 6;
  }
  EXPECT_GT(lost, 10);
  EXPECT_LT(lost, 100);
}

TEST(schedule, mutex_excludes_threads) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    sync::mutex guard;
    int count = 0;
    auto body = [&] {
      for (int i = 0; i < 5; ++i) {
        sync::lock const held{guard};
        auto const read = count;
        sync::schedule_point();
        count = read + 1;
      }
    };
    schedule::run(seed, {body, body, body});
    ASSERT_EQ(count, 15) << seed;
  }
}

TEST(schedule, condition_wakes_a_thread) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    sync::mutex guard;
    sync::condition wake;
    std::vector<int> queue;
    int taken = 0;
    auto producer = [&] {
      for (int i = 0; i < 4; ++i) {
        sync::lock const held{guard};
        queue.push_back(i);
        wake.notify_one();
      }
    };
    auto consumer = [&] {
      for (int i = 0; i < 4; ++i) {
        sync::lock held{guard};
        while (queue.empty()) wake.wait(guard);
        queue.pop_back();
        ++taken;
      }
    };
    schedule::run(seed, {producer, consumer, producer, consumer});
    ASSERT_EQ(taken, 8) << seed;
  }
}

TEST(schedule, schedule_has_a_virtual_clock) {
  auto const really = std::chrono::steady_clock::now();
  sync::time_point before, after;
  schedule::run(1, {[&] {
                  before = sync::now();
                  sync::sleep_for(1h);
                  after = sync::now();
                }});
  EXPECT_GE(after - before, 1h);
  EXPECT_LT(after - before, 1h + 1s);
  EXPECT_LT(std::chrono::steady_clock::now() - really, 10s);
}

TEST(schedule, sleeping_threads_wake_in_the_order_of_their_deadlines) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::string order;
    auto sleeper = [&order](char name, sync::duration span) {
      return [&order, name, span] {
        sync::sleep_for(span);
        order += name;
      };
    };
    schedule::run(seed, {sleeper('c', 3s), sleeper('a', 1s), sleeper('b', 2s)});
    ASSERT_EQ(order, "abc") << seed;
  }
}

TEST(schedule, wait_times_out_without_a_notification) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    sync::mutex guard;
    sync::condition never;
    sync::time_point deadline, ended;
    schedule::run(seed, {[&] {
                    sync::lock held{guard};
                    deadline = sync::now() + 5s;
                    while (sync::now() < deadline) never.wait_until(guard, deadline);
                    ended = sync::now();
                  }});
    ASSERT_GE(ended, deadline);
    // A waiter that timed out must not take the notification of the next thread that waits.
    int woken = 0;
    bool go = false;
    schedule::run(seed, {[&] {
                           sync::lock held{guard};
                           while (!go) never.wait(guard);
                           ++woken;
                         },
                         [&] {
                           sync::sleep_for(1s);
                           sync::lock const held{guard};
                           go = true;
                           never.notify_one();
                         }});
    ASSERT_EQ(woken, 1);
  }
}

TEST(schedule, threads_get_the_same_numbers_in_each_run) {
  auto numbers = [](std::uint64_t seed) {
    std::vector<unsigned> seen(3);
    std::vector<std::function<void()>> bodies;
    for (auto& one : seen) bodies.emplace_back([&one] { one = sync::thread_index(); });
    schedule::run(seed, std::move(bodies));
    return seen;
  };
  auto const first = numbers(1);
  EXPECT_EQ(std::set<unsigned>(first.begin(), first.end()).size(), 3u);
  EXPECT_EQ(numbers(2), first);
}

TEST(schedule, threads_of_the_library_take_part) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bool ran = false;
    schedule::run(seed, {[&] {
                    sync::thread inner{[&] {
                      sync::schedule_point();
                      ran = true;
                    }};
                    inner.join();
                    ASSERT_TRUE(ran);
                  }});
  }
}

TEST(schedule_death, deadlock_aborts_and_names_its_seed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto deadlock = [] {
    sync::mutex a, b;
    auto take = [](sync::mutex& first, sync::mutex& second) {
      return [&first, &second] {
        sync::lock const one{first};
        sync::schedule_point();
        sync::lock const two{second};
      };
    };
    for (std::uint64_t seed = 1;; ++seed) schedule::run(seed, {take(a, b), take(b, a)});
  };
  EXPECT_DEATH(deadlock(), "all threads wait, seed [0-9]+(.|\n)*waits for a mutex");
  EXPECT_DEATH(schedule::run(77, {[] {
                               sync::mutex guard;
                               sync::condition never;
                               sync::lock held{guard};
                               never.wait(guard);
                             }}),
               "all threads wait, seed 77(.|\n)*waits for a condition");
}

} // namespace
