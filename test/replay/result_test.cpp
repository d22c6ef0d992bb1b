// Percentiles, medians and utilization.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <span>
#include <vector>

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

} // namespace
