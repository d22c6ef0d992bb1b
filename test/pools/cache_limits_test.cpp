// The settings and budgets that the thread caches of a pool share.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

import gpumem;

using gpumem::detail::cache_budget;
using gpumem::detail::cache_limits;
using gpumem::detail::event_threshold;
using gpumem::detail::size_class;

namespace {

namespace tuning = gpumem::detail::tuning;
constexpr std::size_t MiB = std::size_t{1} << 20;

TEST(cache_limits_test, nothing_is_cached_before_the_limits_are_set) {
  cache_limits limits;
  EXPECT_FALSE(limits.enabled());
  EXPECT_EQ(limits.largest_block(), 0u);
  limits.set(true, {MiB, MiB, MiB}, 2, event_threshold{4096});
  EXPECT_TRUE(limits.enabled());
  EXPECT_EQ(limits.threshold().bytes(), 4096u);
}

TEST(cache_limits_test, threads_share_the_budgets_of_small_and_medium_blocks) {
  cache_limits limits;
  limits.set(true, {MiB, MiB, MiB}, 2, event_threshold::never());
  for (auto const kind : {size_class::small, size_class::medium, size_class::large}) {
    cache_budget::share mine;
    EXPECT_EQ(limits.budget(kind).charge(mine, MiB), kind == size_class::large);
    limits.budget(kind).give_back(mine);
    EXPECT_TRUE(limits.budget(kind).charge(mine, MiB / 2));
    limits.budget(kind).give_back(mine);
  }
}

TEST(cache_limits_test, largest_block_is_a_fraction_of_the_budget_but_at_least_the_usual_size) {
  cache_limits limits;
  auto const large = 2 * tuning::large_block_fraction * tuning::always_cached_bytes;
  limits.set(true, {0, 0, large}, 1, event_threshold::never());
  EXPECT_EQ(limits.largest_block(), 2 * tuning::always_cached_bytes);
  limits.set(true, {0, 0, 2 * tuning::always_cached_bytes}, 1, event_threshold::never());
  EXPECT_EQ(limits.largest_block(), tuning::always_cached_bytes);
  limits.set(true, {0, 0, 256}, 1, event_threshold::never());
  EXPECT_EQ(limits.largest_block(), 256u) << "no more than the budget";
}

TEST(cache_limits_test, budgets_balance_with_the_bytes_in_use) {
  cache_limits limits;
  limits.set(true, {MiB, MiB, MiB}, 1, event_threshold::never());
  cache_budget::share mine;
  EXPECT_TRUE(limits.budget(size_class::medium).charge(mine, 256));
  cache_limits::usage sum;
  EXPECT_FALSE(limits.is_balanced(sum));
  sum[size_class::medium].add(mine);
  EXPECT_TRUE(limits.is_balanced(sum));
  ++sum[size_class::large].in_use;
  EXPECT_FALSE(limits.is_balanced(sum));
}

TEST(cache_limits_test, exhaustion_is_noted_until_it_is_reset) {
  cache_limits limits;
  EXPECT_FALSE(limits.exhausted());
  limits.note_exhausted();
  limits.note_exhausted();
  EXPECT_TRUE(limits.exhausted());
  limits.reset_exhausted();
  EXPECT_FALSE(limits.exhausted());
}

} // namespace
