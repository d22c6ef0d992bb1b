// Changes between two recordings, against naive ones.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

import gpumem;
import report;
#include "events.hpp"

namespace {

using namespace report_test;
using report::change;

TEST(changes, are_the_differences_of_the_holders) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    auto const rows = random_recording(seed, 400), others = random_recording(seed + 100, 300);
    auto const before = report::summarize(rows);
    auto after = report::summarize(others);
    if (seed % 2) after.snapshot.emplace(); // then its end counts, not its peak
    auto const end = seed % 2 ? others.events.size() - 1 : after.main.peak_live.row;
    std::map<std::string, change> labels;
    for (auto const& [first, each] : naive_state{rows, before.main.peak_live.row}.blocks) {
      auto& one = labels[report::label_name(rows, each.label)];
      one.bytes_before += each.bytes;
      ++one.blocks_before;
    }
    for (auto const& [first, each] : naive_state{others, end}.blocks) {
      auto& one = labels[report::label_name(others, each.label)];
      one.bytes_after += each.bytes;
      ++one.blocks_after;
    }
    auto const made = report::compare(before, after);
    std::map<std::string, change> seen;
    std::uint64_t last = ~std::uint64_t{0};
    for (auto const& each : made.labels) {
      auto const difference = each.bytes_after > each.bytes_before ? each.bytes_after - each.bytes_before
                                                                   : each.bytes_before - each.bytes_after;
      EXPECT_LE(difference, last) << "the largest come first";
      last = difference;
      seen[each.name] = each;
      seen[each.name].name.clear();
    }
    std::erase_if(labels, [](auto const& each) {
      return each.second.bytes_before == each.second.bytes_after &&
             each.second.blocks_before == each.second.blocks_after;
    });
    EXPECT_EQ(seen, labels);
    std::uint64_t sizes_before = 0, sizes_after = 0, streams_before = 0, streams_after = 0;
    for (auto const& each : made.sizes) {
      sizes_before += each.bytes_before;
      sizes_after += each.bytes_after;
    }
    for (auto const& each : made.streams) {
      streams_before += each.bytes_before;
      streams_after += each.bytes_after;
    }
    EXPECT_EQ(sizes_after - sizes_before, streams_after - streams_before);
  }
}

TEST(changes, nothing_changes_within_one_recording) {
  auto const same = report::summarize(random_recording(3, 400));
  auto const made = report::compare(same, same);
  EXPECT_TRUE(made.labels.empty());
  EXPECT_TRUE(made.streams.empty());
  EXPECT_TRUE(made.sizes.empty());
}

TEST(changes, as_many_bytes_in_other_blocks_are_a_change) {
  report::recording rows;
  rows.name = rows.file = "blocks";
  rows.streams = {0};
  rows.threads = {1};
  rows.events = {{.pointer = 4096, .bytes = 512}};
  auto const before = report::summarize(rows);
  rows.events = {{.pointer = 4096, .bytes = 256}, {.pointer = 8192, .bytes = 256}};
  auto const made = report::compare(before, report::summarize(rows));
  EXPECT_EQ(made.streams, (std::vector<change>{{"stream 0", 512, 512, 1, 2}}));
  EXPECT_EQ(made.sizes.size(), 2u);
}

TEST(changes, sizes_have_names) {
  EXPECT_EQ(report::format_sizes(0), "0 B to 2 B");
  EXPECT_EQ(report::format_sizes(20), "1.00 MiB to 2.00 MiB");
  EXPECT_EQ(report::format_sizes(report::size_bins - 1), "from 128 TiB");
}

} // namespace
