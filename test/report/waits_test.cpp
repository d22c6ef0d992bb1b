// Requests that wait, and logs that begin or end in the middle.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

import gpumem;
import report;

namespace {

using report::served_by;
using report::trace_action;

report::recording with(std::vector<report::event> events) {
  report::recording made;
  made.name = made.file = "waits";
  made.events = std::move(events);
  made.streams = {0, 1};
  made.threads = {1};
  return made;
}

report::event wait(std::uint64_t at, std::uint64_t bytes, std::uint16_t stream = 0) {
  return {.microseconds = at, .bytes = bytes, .stream = stream, .action = trace_action::wait};
}
report::event grant(std::uint64_t at, std::uint64_t bytes, std::uint16_t stream = 0) {
  return {.microseconds = at, .pointer = at << 20, .bytes = bytes, .stream = stream, .served = served_by::turn};
}
report::event refusal(std::uint64_t at, std::uint64_t bytes, std::uint16_t stream = 0) {
  return {.microseconds = at, .bytes = bytes, .stream = stream, .action = trace_action::refusal};
}

TEST(waits, end_with_the_grant_or_the_refusal_of_their_request) {
  auto const made = report::summarize(with({wait(1, 100),
                                            wait(2, 100, 1),
                                            wait(3, 100),
                                            grant(10, 100, 1),
                                            refusal(20, 100),
                                            grant(30, 100),
                                            wait(40, 7),
                                            {.microseconds = 50, .pointer = 9 << 20, .bytes = 100}}));
  ASSERT_EQ(made.waits.size(), 4u);
  std::vector<std::vector<std::uint64_t>> seen;
  for (auto const& each : made.waits) seen.push_back({each.begin, each.end, each.bytes, each.stream, each.refused});
  EXPECT_EQ(seen, (std::vector<std::vector<std::uint64_t>>{
                      {1, 20, 100, 0, 1}, {2, 10, 100, 1, 0}, {3, 30, 100, 0, 0}, {40, 50, 7, 0, 0}}));
  EXPECT_EQ(made.main.waits, 4u);
  EXPECT_EQ(made.main.refusals, 1u);
  EXPECT_EQ(made.main.waited, 19u + 8 + 27 + 10);
  EXPECT_EQ(made.columns[2].waiting, 3u);
}

// Older logs have one row of a wait for all blocks of a request.
TEST(waits, request_for_several_blocks_ends_with_its_last_block) {
  auto const made = report::summarize(
      with({wait(1, 300), wait(2, 50), grant(5, 50), grant(10, 100), grant(11, 150, 1), grant(12, 50), grant(20, 9)}));
  ASSERT_EQ(made.waits.size(), 2u);
  EXPECT_EQ(made.waits[0].end, 12u);
  EXPECT_EQ(made.waits[1].end, 5u);
}

TEST(waits, the_longest_are_kept) {
  std::vector<report::event> events;
  for (std::uint64_t i = 0; i < 20; ++i) events.push_back(wait(i, i + 1));
  for (std::uint64_t i = 0; i < 20; ++i) events.push_back(grant(100 + i * 10, 20 - i));
  auto const made = report::summarize(with(events), {.waits = 3});
  ASSERT_EQ(made.waits.size(), 3u);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(made.waits[i].bytes, i + 1);
  EXPECT_EQ(made.main.waits, 20u);
}

TEST(waits, a_log_may_begin_and_end_in_the_middle) {
  auto const made = report::summarize(
      with({{.pointer = 1 << 20, .bytes = 5, .action = trace_action::free}, grant(1, 100), refusal(2, 9), wait(3, 4)}));
  EXPECT_EQ(made.main.unknown_frees, 1u);
  EXPECT_EQ(made.main.last.live, 100u);
  ASSERT_EQ(made.waits.size(), 1u);
  EXPECT_EQ(made.waits[0].end, 3u);
  EXPECT_TRUE(made.frames.empty()) << "the recording has no memory";
}

TEST(waits, a_block_whose_free_is_lost_counts_once) {
  report::event const block{.pointer = 1 << 20, .bytes = 5};
  auto const made = report::summarize(with({block, block}));
  EXPECT_EQ(made.main.peak_live.live, 5u);
  EXPECT_EQ(made.main.last.blocks, 1u);
}

} // namespace
