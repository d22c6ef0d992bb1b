// The epochs of one stream, and the counts of its frees.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include <cstddef>

#include <gtest/gtest.h>

import gpumem;

namespace {

using gpumem::detail::stream_epochs;
namespace tuning = gpumem::detail::tuning;

// Says of `times` frees, one at a time, that an event was recorded at each.
void cover_frees(stream_epochs& epochs, unsigned times) {
  for (unsigned i = 0; i < times; ++i) {
    epochs.count_uncovered(1);
    epochs.covered(epochs.end_epoch());
  }
}

TEST(stream_epochs, completed_epoch_never_goes_back) {
  stream_epochs epochs;
  EXPECT_FALSE(epochs.completed(1));
  epochs.publish_completed(3);
  epochs.publish_completed(2);
  EXPECT_TRUE(epochs.completed(3));
  EXPECT_FALSE(epochs.completed(4));
}

TEST(stream_epochs, precise_epoch_was_never_current) {
  stream_epochs epochs;
  auto const before = epochs.current();
  auto const precise = epochs.end_epoch(true).number;
  EXPECT_EQ(precise, before + 1);
  EXPECT_EQ(epochs.current(), before + 2);
  EXPECT_EQ(epochs.end_epoch().number, before + 2);
}

TEST(stream_epochs, first_frees_are_not_silent) {
  stream_epochs epochs;
  EXPECT_FALSE(epochs.count_silent(1));
  EXPECT_EQ(epochs.uncovered_frees(), 0u);
  cover_frees(epochs, tuning::covered_frees_per_silent - 1);
  EXPECT_FALSE(epochs.count_silent(1));
}

TEST(stream_epochs, covered_frees_allow_silent_ones) {
  stream_epochs epochs;
  cover_frees(epochs, 2 * tuning::covered_frees_per_silent);
  EXPECT_TRUE(epochs.count_silent(1));
  EXPECT_TRUE(epochs.count_silent(1));
  EXPECT_FALSE(epochs.count_silent(1));
  EXPECT_EQ(epochs.uncovered_frees(), 2u);
  EXPECT_EQ(epochs.uncovered_bytes(), 2u);
  epochs.covered(epochs.end_epoch());
  EXPECT_EQ(epochs.uncovered_frees(), 0u);
  EXPECT_EQ(epochs.uncovered_bytes(), 0u);
  EXPECT_TRUE(epochs.count_silent(1));
}

TEST(stream_epochs, silent_frees_and_bytes_are_limited) {
  stream_epochs epochs;
  cover_frees(epochs, 2 * tuning::covered_frees_per_silent * tuning::max_silent_frees);
  EXPECT_FALSE(epochs.count_silent(gpumem::detail::stream_epochs::max_silent_bytes));
  for (unsigned i = 0; i < tuning::max_silent_frees; ++i) ASSERT_TRUE(epochs.count_silent(1)) << i;
  EXPECT_FALSE(epochs.count_silent(1));
  epochs.covered(epochs.end_epoch());
  epochs.forbid_silent();
  EXPECT_FALSE(epochs.count_silent(1));
}

TEST(stream_epochs, failed_record_leaves_the_frees_uncovered) {
  stream_epochs epochs;
  epochs.count_uncovered(7);
  auto const failed = epochs.end_epoch();
  EXPECT_EQ(failed.frees, 1u);
  epochs.not_covered(failed);
  EXPECT_EQ(epochs.uncovered_frees(), 1u);
  EXPECT_EQ(epochs.newest_recorded(), 0u);
}

TEST(stream_epochs, lost_event_covers_nothing) {
  stream_epochs epochs;
  auto const first = epochs.end_epoch(), second = epochs.end_epoch();
  epochs.covered(first);
  epochs.covered(second);
  EXPECT_EQ(epochs.newest_recorded(), second.number);
  epochs.lose_event(first.number);
  EXPECT_EQ(epochs.newest_recorded(), first.number);
  EXPECT_EQ(epochs.uncovered_frees(), 1u);
}

TEST(stream_epochs, event_is_due_after_enough_unrecorded_frees_or_bytes) {
  stream_epochs epochs;
  for (unsigned i = 1; i < tuning::frees_per_event; ++i) ASSERT_FALSE(epochs.count_unrecorded(1, 1, 1 << 20)) << i;
  EXPECT_TRUE(epochs.count_unrecorded(1, 1, 1 << 20));
  epochs.reset_unrecorded();
  EXPECT_FALSE(epochs.count_unrecorded(1, 100, 1000));
  EXPECT_TRUE(epochs.count_unrecorded(1, 900, 1000)); // because of the bytes
}

TEST(stream_epochs, restart_completes_all_epochs_and_allows_no_silent_free) {
  stream_epochs epochs;
  cover_frees(epochs, 2 * tuning::covered_frees_per_silent);
  auto const last = epochs.current();
  epochs.restart();
  EXPECT_TRUE(epochs.completed(last));
  EXPECT_FALSE(epochs.completed(epochs.current()));
  EXPECT_FALSE(epochs.count_silent(1));
}

} // namespace
