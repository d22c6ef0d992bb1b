// Credit: taken in quanta, never more than there is, and none of it lost.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

import gpumem;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class credit : public testing::Test {
protected:
  gpumem::detail::credit all;
  gpumem::detail::credit::part one, other;
  bool balanced() const {
    gpumem::detail::credit::sum both;
    for (auto const* const each : {&one, &other}) both.add(*each);
    return all.balanced(both);
  }
};

TEST_F(credit, is_taken_in_quanta_and_to_the_last_byte) {
  all.set_total(100 * 1024, 100 * 1024);
  EXPECT_TRUE(all.spend(one, 1000));
  EXPECT_EQ(one.allowance, 64 * 1024 - 1000);
  EXPECT_TRUE(all.spend(one, 63 * 1024)) << "out of what it has";
  EXPECT_EQ(all.left(), 36 * 1024);
  one.regain(63 * 1024);
  EXPECT_FALSE(all.spend(other, 36 * 1024 + 1));
  EXPECT_EQ(all.left(), 36 * 1024) << "nothing was taken";
  EXPECT_TRUE(all.spend(other, 36 * 1024));
  EXPECT_EQ(all.left(), 0);
  EXPECT_TRUE(balanced());
  one.regain(1000);
  EXPECT_EQ(one.allowance, 64 * 1024);
  all.give_back(one);
  EXPECT_EQ(all.left(), 64 * 1024);
  EXPECT_EQ(one.allowance, 0);
  EXPECT_EQ(one.taken.load(), 0);
}

TEST_F(credit, is_shared_and_nobody_takes_more_than_a_share) {
  all.set_total(MiB, MiB / 4);
  EXPECT_FALSE(all.spend(one, MiB / 4 + 1));
  EXPECT_EQ(all.left(), static_cast<std::int64_t>(MiB)) << "nothing was taken";
  EXPECT_TRUE(all.spend(one, MiB / 4));
  EXPECT_FALSE(all.spend(one, 1));
  EXPECT_TRUE(all.spend(other, MiB / 4)) << "left for others";
  all.set_total(MiB, MiB / 2);
  EXPECT_TRUE(all.spend(one, MiB / 4));
  EXPECT_FALSE(all.spend(one, 1));
  EXPECT_TRUE(balanced());
}

TEST_F(credit, that_is_made_less_stays_where_it_is_in_use) {
  all.set_total(MiB, MiB);
  ASSERT_TRUE(all.spend(one, MiB));
  all.set_total(MiB / 2, MiB / 2);
  EXPECT_FALSE(all.spend(other, 1));
  EXPECT_TRUE(balanced());
  one.regain(MiB);
  all.give_back(one);
  EXPECT_EQ(all.left(), static_cast<std::int64_t>(MiB / 2));
  EXPECT_TRUE(all.spend(other, MiB / 2));
}

} // namespace
