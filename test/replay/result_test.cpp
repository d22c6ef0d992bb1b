// Percentiles, medians, utilization, fragmentation and the suggested size.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

import gpumem;
import replay;

namespace {

double percentile_of(std::vector<double> values, double fraction) {
  return replay::percentile(std::span<double>{values}, fraction);
}

TEST(percentile, percentile_is_the_nearest_rank) {
  std::vector<double> values;
  for (int i = 1000; i > 0; --i) values.push_back(i);
  EXPECT_EQ(percentile_of(values, 0.5), 500);
  EXPECT_EQ(percentile_of(values, 0.99), 990);
  EXPECT_EQ(percentile_of(values, 1.0), 1000);
  EXPECT_EQ(percentile_of(values, 0.0), 1);
  EXPECT_EQ(percentile_of({3}, 0.99), 3);
  EXPECT_EQ(percentile_of({}, 0.99), 0);
}

TEST(median, median_is_the_middle_value_or_the_mean_of_two) {
  EXPECT_EQ(replay::median({5, 1, 3}), 3);
  EXPECT_EQ(replay::median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(replay::median({}), 0);
}

TEST(utilization, utilization_is_peak_live_over_peak_reserved) {
  replay::result row;
  EXPECT_EQ(row.utilization(), 0);
  row.peak_live_bytes = 3;
  row.peak_reserved_bytes = 4;
  EXPECT_EQ(row.utilization(), 0.75);
}

TEST(suggested_initial_size, four_fifths_of_peak_live_are_rounded_up_to_2_MiB) {
  constexpr std::uint64_t mib = 1 << 20;
  EXPECT_EQ(replay::suggested_initial_size(0), 0u);
  EXPECT_EQ(replay::suggested_initial_size(1), 2 * mib);
  EXPECT_EQ(replay::suggested_initial_size(10 * mib), 8 * mib);
  EXPECT_EQ(replay::suggested_initial_size(10 * mib + 1), 10 * mib);
  EXPECT_EQ(replay::suggested_initial_size(12 * mib), 10 * mib);
  EXPECT_EQ(replay::suggested_initial_size(std::numeric_limits<std::uint64_t>::max()) % (2 * mib), 0u);
}

TEST(fragmentation, fragmentation_is_the_share_of_free_bytes_outside_the_largest_range) {
  gpumem::statistics now;
  EXPECT_EQ(replay::fragmentation_of(now), 0);
  now.free = 400;
  now.largest_free = 300;
  EXPECT_EQ(replay::fragmentation_of(now), .25);
  now.largest_free = 400;
  EXPECT_EQ(replay::fragmentation_of(now), 0);
  now.largest_free = 401; // the statistics of a pool belong to slightly different times
  EXPECT_EQ(replay::fragmentation_of(now), 0);
}

} // namespace
