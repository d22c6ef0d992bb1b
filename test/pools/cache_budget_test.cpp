// The budget of the thread caches: claimed in quanta, never exceeded, and none of it lost.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

import gpumem;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class cache_budget_test : public testing::Test {
protected:
  gpumem::detail::cache_budget all;
  gpumem::detail::cache_budget::share one, other;
  bool is_balanced() const {
    gpumem::detail::cache_budget::usage both;
    for (auto const* const each : {&one, &other}) both.add(*each);
    return all.is_balanced(both);
  }
};

TEST_F(cache_budget_test, budget_is_claimed_in_quanta_and_to_the_last_byte) {
  all.set_total(100 * 1024, 100 * 1024);
  EXPECT_TRUE(all.charge(one, 1000));
  EXPECT_EQ(one.allowance, 64 * 1024 - 1000);
  EXPECT_TRUE(all.charge(one, 63 * 1024)) << "from its own share";
  EXPECT_EQ(all.unclaimed(), 36 * 1024);
  one.uncharge(63 * 1024);
  EXPECT_FALSE(all.charge(other, 36 * 1024 + 1));
  EXPECT_EQ(all.unclaimed(), 36 * 1024) << "nothing was taken";
  EXPECT_TRUE(all.charge(other, 36 * 1024));
  EXPECT_EQ(all.unclaimed(), 0);
  EXPECT_TRUE(is_balanced());
  one.uncharge(1000);
  EXPECT_EQ(one.allowance, 64 * 1024);
  all.give_back(one);
  EXPECT_EQ(all.unclaimed(), 64 * 1024);
  EXPECT_EQ(one.allowance, 0);
  EXPECT_EQ(one.claimed.load(), 0);
}

TEST_F(cache_budget_test, budget_is_shared_and_no_share_exceeds_its_limit) {
  all.set_total(MiB, MiB / 4);
  EXPECT_FALSE(all.charge(one, MiB / 4 + 1));
  EXPECT_EQ(all.unclaimed(), static_cast<std::int64_t>(MiB)) << "nothing was taken";
  EXPECT_TRUE(all.charge(one, MiB / 4));
  EXPECT_FALSE(all.charge(one, 1));
  EXPECT_TRUE(all.charge(other, MiB / 4)) << "left for other threads";
  all.set_total(MiB, MiB / 2);
  EXPECT_TRUE(all.charge(one, MiB / 4));
  EXPECT_FALSE(all.charge(one, 1));
  EXPECT_TRUE(is_balanced());
}

TEST_F(cache_budget_test, claimed_share_stays_when_the_budget_shrinks) {
  all.set_total(MiB, MiB);
  ASSERT_TRUE(all.charge(one, MiB));
  all.set_total(MiB / 2, MiB / 2);
  EXPECT_FALSE(all.charge(other, 1));
  EXPECT_TRUE(is_balanced());
  one.uncharge(MiB);
  all.give_back(one);
  EXPECT_EQ(all.unclaimed(), static_cast<std::int64_t>(MiB / 2));
  EXPECT_TRUE(all.charge(other, MiB / 2));
}

} // namespace
