// The lifetime of a shared state; exactly one thread destroys it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

namespace {

struct counted final : gpumem::extend::shared_state {
  explicit counted(std::atomic<int>& ended, bool long_lived = true) : shared_state{long_lived}, ended_{ended} {}
  ~counted() override { ++ended_; }
  std::atomic<int>& ended_;
};
using handle = gpumem::extend::state_ptr<counted>;

TEST(shared_state, is_destroyed_with_the_last_handle) {
  std::atomic<int> ended{0};
  {
    handle a{new counted{ended}};
    handle b{a}, c{std::move(a)};
    EXPECT_EQ(b, c);
    b = handle{new counted{ended}};
    EXPECT_EQ(ended, 0);
    c = b;
    EXPECT_EQ(ended, 1);
    auto& self = c;
    c = self;
  }
  EXPECT_EQ(ended, 2);
}

TEST(shared_state, is_destroyed_with_the_last_block_after_the_handles) {
  std::atomic<int> ended{0};
  auto* const state = new counted{ended};
  {
    handle const only{state};
    state->add_live();
    state->add_live();
    state->add_live();
    state->drop_live();
  }
  EXPECT_EQ(ended, 0);
  state->drop_live();
  EXPECT_EQ(ended, 0);
  state->drop_live();
  EXPECT_EQ(ended, 1);
}

TEST(shared_state, counts_blocks_freed_by_other_threads) {
  std::atomic<int> ended{0};
  auto* const state = new counted{ended};
  {
    handle const only{state};
    std::thread{[&] {
      for (int i = 0; i < 10; ++i) state->add_live();
    }}.join();
    for (int i = 0; i < 9; ++i) state->drop_live(); // the count of this thread's slot becomes negative
  }
  EXPECT_EQ(ended, 0);
  state->drop_live();
  EXPECT_EQ(ended, 1);
}

// More threads than there are slots of a thread's own.
TEST(shared_state, counts_blocks_of_many_threads) {
  for (bool const long_lived : {true, false}) {
    std::atomic<int> ended{0};
    auto* const state = new counted{ended, long_lived};
    auto* const last = new handle{state};
    constexpr int threads = 100;
    std::atomic<int> there{0};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&] {
        for (int k = 0; k < 50; ++k) state->add_live();
        if (++there == threads) delete last;
        while (there < threads) std::this_thread::yield();
        for (int k = 0; k < 50; ++k) state->drop_live();
      });
    }
    for (auto& thread : all) thread.join();
    EXPECT_EQ(ended, 1);
  }
}

TEST(shared_state, is_destroyed_once_when_many_threads_release_it) {
  // Threads free blocks that another thread's slot has counted, while the slots are summed: no sum may reach zero
  // early.
  for (int round = 0; round < 3000; ++round) {
    std::atomic<int> ended{0};
    auto* const state = new counted{ended};
    auto* const last = new handle{state};
    constexpr int each = 4, threads = 4;
    std::atomic<int> there{0};
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&, i] {
        for (int k = 0; k < each; ++k) state->add_live();
        ++there;
        while (there < threads) std::this_thread::yield();
        if (i == 0) {
          delete last;
          for (int k = 0; k < each; ++k) state->drop_live();
        } else if (i == 1) {
          for (int k = 0; k < 2 * each; ++k) state->drop_live(); // its own and another thread's
        } else if (i == 2) {
          for (int k = 0; k < each; ++k) state->drop_live();
        }
      });
    }
    for (auto& thread : all) thread.join();
    ASSERT_EQ(ended, 1) << round;
  }
}

} // namespace
