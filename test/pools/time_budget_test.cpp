// The budget of the time that a pool spends on moving pages and on polling for completion.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::detail::time_budget;
using time_point = gpumem::detail::sync::time_point;

class time_budget_of : public testing::Test {
protected:
  time_point now{1h};
};

TEST_F(time_budget_of, budget_begins_empty) {
  time_budget budget{0.05, 100ms, now};
  EXPECT_EQ(budget.left(now), 0ms);
  EXPECT_EQ(budget.left(now + 20ms), 1ms);
  EXPECT_EQ(budget.left(now + 10ms), 1ms) << "an earlier time earns nothing";
  EXPECT_EQ(budget.left(now + 20ms), 1ms);
}

TEST_F(time_budget_of, pause_earns_nothing_and_takes_nothing) {
  time_budget budget{0.05, 100ms, now};
  EXPECT_EQ(budget.left(now + 20ms), 1ms);
  budget.pause(now + 1h);
  EXPECT_EQ(budget.left(now + 1h), 1ms);
  EXPECT_EQ(budget.left(now + 1h + 20ms), 2ms);
}

TEST_F(time_budget_of, share_of_the_time_is_never_overdrawn) {
  time_budget budget{0.05, 100ms, now};
  time_budget::nanoseconds spent{0};
  for (int i = 0; i < 100'000; ++i) {
    now += 100us;
    auto const left = budget.left(now);
    budget.spend(left);
    spent += left;
    ASSERT_LE(spent, 0.05 * (i + 1) * time_budget::nanoseconds{100us} + 1ns);
  }
  EXPECT_GE(spent, 499ms) << "the time is used in full";
}

TEST_F(time_budget_of, saved_time_is_bounded) {
  time_budget budget{0.05, 100ms, now};
  EXPECT_EQ(budget.left(now + 24h), 100ms);
}

TEST_F(time_budget_of, overdrawn_time_is_earned_back_first) {
  time_budget budget{0.5, 100ms, now};
  budget.spend(3ms);
  EXPECT_EQ(budget.left(now + 2ms), -2ms);
  EXPECT_EQ(budget.left(now + 8ms), 1ms);
}

TEST_F(time_budget_of, share_0_earns_no_time_and_share_1_is_unlimited) {
  time_budget none{0, 100ms, now};
  EXPECT_EQ(none.left(now + 1h), 0ns);
  EXPECT_FALSE(none.unlimited());
  EXPECT_TRUE((time_budget{1, 100ms, now}.unlimited()));
}

} // namespace
