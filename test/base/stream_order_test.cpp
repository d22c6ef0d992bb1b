// The order of one stream after others.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

import gpumem;

namespace {

using gpumem::detail::stream_order;
using gpumem::detail::vector_clock;

TEST(vector_clock, keeps_the_newest_epoch_of_each_stream) {
  vector_clock clock;
  EXPECT_EQ(clock.at(3), 0u);
  clock.raise(3, 7);
  clock.raise(1, 2);
  clock.raise(3, 5); // older: ignored
  EXPECT_EQ(clock.at(3), 7u);
  EXPECT_EQ(clock.at(1), 2u);
  EXPECT_EQ(clock.at(2), 0u);
}

TEST(vector_clock, join_keeps_the_newer_epoch_of_each_stream) {
  vector_clock a, b;
  a.raise(1, 5);
  a.raise(2, 1);
  b.raise(2, 9);
  b.raise(4, 3);
  a.join(b);
  EXPECT_EQ(a.at(1), 5u);
  EXPECT_EQ(a.at(2), 9u);
  EXPECT_EQ(a.at(4), 3u);
  EXPECT_EQ(b.at(1), 0u);
}

TEST(stream_order, is_after_all_epochs_up_to_the_newest) {
  stream_order order;
  EXPECT_FALSE(order.is_after(1, 1));
  order.add(1, 5, {});
  EXPECT_TRUE(order.is_after(1, 5));
  EXPECT_TRUE(order.is_after(1, 4));
  EXPECT_FALSE(order.is_after(1, 6));
  EXPECT_FALSE(order.is_after(2, 1));
}

TEST(stream_order, wait_adds_the_order_that_the_recording_stream_had) {
  stream_order first, second;
  first.add(1, 5, {});
  auto const at_record = first.snapshot();
  first.add(3, 8, {}); // after the record: the event does not cover it
  second.add(2, 9, at_record);
  EXPECT_TRUE(second.is_after(2, 9));
  EXPECT_TRUE(second.is_after(1, 5));
  EXPECT_FALSE(second.is_after(3, 8));
}

TEST(stream_order, knows_nothing_after_clear) {
  stream_order order;
  order.add(1, 5, {});
  order.clear();
  EXPECT_FALSE(order.is_after(1, 5));
}

} // namespace
