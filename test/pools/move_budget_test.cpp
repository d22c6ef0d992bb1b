// The time that a pool spends on moving pages.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <limits>

import gpumem;

namespace {

using namespace std::chrono_literals;
using gpumem::detail::move_budget;
using time_point = gpumem::sync::time_point;

class move_budget_of : public testing::Test {
protected:
  time_point now{1h};
};

TEST_F(move_budget_of, a_tenth_of_a_second_is_there_at_first) {
  move_budget budget{0.05, now};
  EXPECT_EQ(budget.pages(now), 2500u) << "of 40 us";
  budget.spend(2400);
  EXPECT_EQ(budget.pages(now), 100u);
  budget.spend(100);
  EXPECT_EQ(budget.pages(now), 0u);
}

TEST_F(move_budget_of, a_share_of_the_time_is_never_overdrawn) {
  move_budget budget{0.05, now};
  std::size_t moved = 0;
  for (int i = 0; i < 100'000; ++i) {
    now += 100us;
    auto const pages = budget.pages(now);
    budget.spend(pages);
    moved += pages;
    ASSERT_LE(static_cast<double>(moved) * 40e-6, 0.1 + 0.05 * (i + 1) * 100e-6 + 1e-9);
  }
  EXPECT_GE(static_cast<double>(moved) * 40e-6, 0.1 + 0.05 * 10 - 1e-4) << "and used in full";
}

TEST_F(move_budget_of, what_is_saved_has_an_end) {
  move_budget budget{0.05, now};
  EXPECT_EQ(budget.pages(now + 24h), 2500u);
}

TEST_F(move_budget_of, share_0_moves_none_and_share_1_any_number) {
  move_budget none{0, now}, any{1, now};
  EXPECT_EQ(none.pages(now + 1h), 0u);
  EXPECT_EQ(any.pages(now), std::numeric_limits<std::size_t>::max());
  any.spend(1'000'000);
  EXPECT_EQ(any.pages(now), std::numeric_limits<std::size_t>::max());
}

} // namespace
