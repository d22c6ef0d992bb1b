// Locks, threads and thread indices, as built without schedules.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

import gpumem;

namespace {

using namespace std::chrono_literals;
namespace sync = gpumem::detail::sync;

TEST(sync, mutex_excludes_the_other_thread) {
  sync::mutex guard;
  int count = 0;
  auto body = [&] {
    for (int i = 0; i < 20'000; ++i) {
      sync::lock const held{guard};
      ++count;
    }
  };
  sync::thread a{body}, b{body};
  a.join();
  b.join();
  EXPECT_EQ(count, 40'000);
}

TEST(sync, spin_lock_excludes_contending_threads) {
  sync::spin_mutex guard;
  int count = 0;
  std::vector<sync::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        sync::spin_lock const held{guard};
        ++count;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(count, 80'000);
}

// The counter is not atomic: if the lock lets the owner's two plain accesses overlap with another thread's, counts are
// lost.
TEST(sync, biased_lock_held_by_another_thread_excludes_its_owner) {
  sync::biased_mutex guard;
  guard.enable_bias();
  constexpr std::int64_t by_other = 500;
  std::int64_t count = 0, by_owner = 0;
  std::atomic<bool> ended{false};
  sync::thread owner{[&] {
    for (; by_owner == 0 || !ended; ++by_owner) {
      std::scoped_lock const held{guard};
      ++count;
    }
  }};
  for (int i = 0; i < by_other; ++i) {
    guard.request_revoke();
    sync::biased_mutex::fence_owner_threads();
    guard.lock_revoked();
    for (int k = 0; k < 100; ++k) ++count;
    guard.unlock_revoked();
  }
  ended = true;
  owner.join();
  EXPECT_EQ(count, by_owner + 100 * by_other);
}

TEST(sync, biased_lock_without_an_owner_excludes_threads) {
  sync::biased_mutex guard;
  int count = 0;
  auto const body = [&] {
    for (int i = 0; i < 20'000; ++i) {
      std::scoped_lock const held{guard};
      ++count;
    }
  };
  sync::thread a{body}, b{body};
  for (int i = 0; i < 100; ++i) {
    guard.request_revoke();
    guard.lock_revoked();
    ++count;
    guard.unlock_revoked();
  }
  a.join();
  b.join();
  EXPECT_EQ(count, 40'100);
}

// Destructors of thread-local objects may run after their thread returned its index; another thread may own it and its
// locks by then.
TEST(sync, thread_that_returned_its_index_gets_none) {
  unsigned late = 0;
  std::thread other{[&] {
    struct at_exit {
      unsigned* seen;
      ~at_exit() { *seen = sync::thread_index(); }
    };
    thread_local at_exit const first{&late}; // made first, so destroyed last
    static_cast<void>(first);
    EXPECT_LT(sync::thread_index(), sync::no_index);
  }};
  other.join();
  EXPECT_EQ(late, sync::no_index);
}

TEST(sync, try_lock_does_not_wait) {
  sync::mutex guard;
  sync::spin_mutex quick;
  sync::lock const held{guard};
  sync::spin_lock const quickly_held{quick};
  sync::thread other{[&] { EXPECT_FALSE(guard.try_lock() || quick.try_lock()); }};
  other.join();
}

TEST(sync, condition_under_a_spin_lock_wakes_threads) {
  sync::spin_mutex guard;
  sync::spin_condition wake;
  int turn = 0;
  sync::thread other{[&] {
    sync::spin_lock held{guard};
    for (int i = 0; i < 1000; ++i) {
      while (turn != 1) wake.wait(held);
      turn = 0;
      wake.notify_all();
    }
  }};
  {
    sync::spin_lock held{guard};
    for (int i = 0; i < 1000; ++i) {
      turn = 1;
      wake.notify_all();
      while (turn != 0) wake.wait(held);
    }
  }
  other.join();
  EXPECT_EQ(turn, 0);
}

TEST(sync, condition_wakes_waiting_threads) {
  sync::mutex guard;
  sync::condition wake;
  int turn = 0;
  sync::thread other{[&] {
    sync::lock held{guard};
    for (int i = 0; i < 1000; ++i) {
      while (turn != 1) wake.wait(guard);
      turn = 0;
      wake.notify_all();
    }
  }};
  {
    sync::lock held{guard};
    for (int i = 0; i < 1000; ++i) {
      turn = 1;
      wake.notify_one();
      while (turn != 0) wake.wait(guard);
    }
  }
  other.join();
}

TEST(sync, timed_wait_ends_in_time) {
  sync::mutex guard;
  sync::condition never;
  sync::lock held{guard};
  auto const deadline = sync::now() + 2ms;
  while (sync::now() < deadline) never.wait_until(guard, deadline);
  EXPECT_GE(sync::now(), deadline);
  EXPECT_FALSE(guard.try_lock()) << "the wait has locked it again";
}

TEST(sync, live_threads_have_dense_indices_that_are_reused) {
  auto const mine = sync::thread_index();
  EXPECT_EQ(sync::thread_index(), mine);
  for (int round = 0; round < 3; ++round) {
    std::vector<unsigned> numbers(8);
    std::vector<std::thread> threads;
    sync::mutex guard;
    sync::condition all_there;
    std::size_t there = 0;
    for (auto& number : numbers) {
      threads.emplace_back([&] {
        number = sync::thread_index();
        sync::lock held{guard};
        ++there;
        all_there.notify_all();
        while (there < numbers.size()) all_there.wait(guard); // all are alive at once
      });
    }
    for (auto& thread : threads) thread.join();
    std::set<unsigned> const different(numbers.begin(), numbers.end());
    EXPECT_EQ(different.size(), numbers.size());
    EXPECT_FALSE(different.contains(mine));
    EXPECT_LT(*different.rbegin(), 9u); // no higher than the number of threads requires
  }
}

} // namespace
