// The pauses between polls: each longer than the one before, up to a maximum.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <gtest/gtest.h>

#include <chrono>

import gpumem;

namespace {

using gpumem::detail::backoff;
constexpr auto step = gpumem::detail::backoff::step;

TEST(backoff_test, pauses_grow_by_one_step_up_to_the_longest) {
  backoff pauses{3 * step + step / 2};
  EXPECT_EQ(pauses.next(), step);
  EXPECT_EQ(pauses.next(), 2 * step);
  EXPECT_EQ(pauses.next(), 3 * step);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pauses.next(), 3 * step + step / 2);
}

TEST(backoff_test, restart_begins_with_the_shortest_pause) {
  backoff pauses{10 * step};
  EXPECT_EQ(pauses.count(), 0u);
  for (int i = 0; i < 4; ++i) pauses.next();
  EXPECT_EQ(pauses.count(), 4u);
  pauses.restart();
  EXPECT_EQ(pauses.count(), 0u);
  EXPECT_EQ(pauses.next(), step);
}

TEST(backoff_test, longest_pause_shorter_than_a_step_holds) {
  backoff pauses{step / 2};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pauses.next(), step / 2);
}

} // namespace
