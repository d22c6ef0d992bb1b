// The figures, curves and maps of random recordings against naive ones.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
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

constexpr report::bounds few{.columns = 16, .frames = 5, .cells = 64, .waits = 4, .colors = 2};

TEST(summary, extremes_and_curves_are_those_of_the_rows) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    auto const rows = random_recording(seed, 40 * seed);
    auto const made = report::summarize(rows, few);
    std::vector<report::moment> all;
    for (std::size_t row = 0; row < rows.events.size(); ++row) all.push_back(naive_state{rows, row}.when);
    expect_same(made.main.peak_live, *std::ranges::max_element(all, {}, &report::moment::live));
    expect_same(made.main.peak_reserved, *std::ranges::max_element(all, {}, &report::moment::reserved));
    expect_same(made.main.last, all.back());
    EXPECT_EQ(made.main.rows, rows.events.size());
    ASSERT_LE(made.columns.size(), few.columns);
    ASSERT_EQ((all.size() + made.rows_of_column - 1) / made.rows_of_column, made.columns.size());
    EXPECT_TRUE(std::has_single_bit(made.rows_of_column));
    for (std::size_t i = 0; i < made.columns.size(); ++i) {
      auto const first = all.begin() + static_cast<std::ptrdiff_t>(i * made.rows_of_column);
      auto const last = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), (i + 1) * made.rows_of_column));
      std::vector<report::moment> const group{first, last};
      auto const& column = made.columns[i];
      EXPECT_EQ(column.microseconds, group.front().microseconds);
      EXPECT_EQ(column.live_least, std::ranges::min(group, {}, &report::moment::live).live);
      EXPECT_EQ(column.live_most, std::ranges::max(group, {}, &report::moment::live).live);
      EXPECT_EQ(column.reserved_most, std::ranges::max(group, {}, &report::moment::reserved).reserved);
      expect_same(column.worst, *std::ranges::max_element(group, {}, &report::moment::scattered));
    }
  }
}

TEST(summary, worst_fragmentation_is_that_of_a_program_at_work) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    auto const rows = random_recording(seed, 300);
    auto const made = report::summarize(rows); // one row is one column
    report::moment worst = made.main.peak_live;
    for (std::size_t row = 0; row < rows.events.size(); ++row) {
      auto const when = naive_state{rows, row}.when;
      if (when.live >= made.main.peak_live.live / 2 && when.scattered() > worst.scattered()) worst = when;
    }
    expect_same(made.main.worst, worst);
  }
}

TEST(summary, counts_are_those_of_the_rows) {
  auto const rows = random_recording(3, 500);
  auto const made = report::summarize(rows, few);
  auto const count = [&](trace_action action) {
    return static_cast<std::uint64_t>(std::ranges::count(rows.events, action, &event::action));
  };
  EXPECT_EQ(made.main.allocations, count(trace_action::allocate));
  EXPECT_EQ(made.main.frees, count(trace_action::free));
  EXPECT_EQ(made.main.maps, count(trace_action::map));
  EXPECT_EQ(made.main.unmaps, count(trace_action::unmap));
  EXPECT_EQ(made.main.moves, count(trace_action::move));
  EXPECT_EQ(made.main.unknown_frees, 0u);
  std::array<std::uint64_t, report::reasons> served{}, in_columns{};
  for (auto const& each : rows.events)
    if (each.action == trace_action::allocate) ++served[static_cast<std::size_t>(each.served)];
  for (auto const& each : made.columns)
    for (std::size_t i = 0; i < report::reasons; ++i) in_columns[i] += each.served[i];
  EXPECT_EQ(made.main.served, served);
  EXPECT_EQ(in_columns, served);
}

void expect_holders(std::vector<report::holder> const& seen, std::map<std::string, std::uint64_t> const& expected) {
  EXPECT_TRUE(std::ranges::is_sorted(seen, std::greater{}, &report::holder::bytes));
  ASSERT_EQ(seen.size(), expected.size());
  for (auto const& each : seen) EXPECT_EQ(each.bytes, expected.at(each.name)) << each.name;
}

TEST(summary, holders_and_sizes_are_those_of_their_moments) {
  auto const rows = random_recording(4, 400);
  auto const made = report::summarize(rows, few);
  for (bool const at_end : {false, true}) {
    naive_state const state{rows, at_end ? rows.events.size() - 1 : made.main.peak_live.row};
    std::map<std::string, std::uint64_t> streams, threads, labels;
    std::vector<report::size_bin> sizes(report::size_bins);
    for (auto const& [first, each] : state.blocks) {
      streams[report::stream_name(rows, each.stream)] += each.bytes;
      threads["thread " + std::to_string(rows.threads[each.thread])] += each.bytes;
      labels[each.label == 0 ? "no label" : rows.labels[each.label]] += each.bytes;
      auto& bin = sizes[static_cast<std::size_t>(std::bit_width(each.bytes)) - 1];
      ++(at_end ? bin.blocks_at_end : bin.blocks_at_peak);
      (at_end ? bin.bytes_at_end : bin.bytes_at_peak) += each.bytes;
    }
    auto const& lists = at_end ? made.at_end : made.at_peak;
    expect_holders(lists.streams, streams);
    expect_holders(lists.threads, threads);
    expect_holders(lists.labels, labels);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      auto const& bin = made.sizes[i];
      EXPECT_EQ(at_end ? bin.blocks_at_end : bin.blocks_at_peak,
                at_end ? sizes[i].blocks_at_end : sizes[i].blocks_at_peak);
      EXPECT_EQ(at_end ? bin.bytes_at_end : bin.bytes_at_peak, at_end ? sizes[i].bytes_at_end : sizes[i].bytes_at_peak);
    }
  }
}

TEST(summary, recording_without_labels_has_no_holders_by_label) {
  auto rows = random_recording(4, 100);
  rows.labels = {""};
  for (auto& each : rows.events) each.label = 0;
  auto const made = report::summarize(rows, few);
  EXPECT_TRUE(made.at_peak.labels.empty());
  EXPECT_TRUE(made.label_colors.empty());
  EXPECT_FALSE(made.at_peak.streams.empty());
}

// The rows of what was there before are state, and no calls.
TEST(summary, initial_rows_are_no_calls) {
  auto rows = random_recording(5, 300);
  rows.initial = 100;
  auto const all = report::summarize(random_recording(5, 300), few), made = report::summarize(rows, few);
  auto const expected = std::count_if(rows.events.begin() + 100, rows.events.end(),
                                      [](event const& each) { return each.action == trace_action::allocate; });
  EXPECT_EQ(made.main.allocations, static_cast<std::uint64_t>(expected));
  EXPECT_LT(made.main.frees, all.main.frees);
  expect_same(made.main.peak_live, all.main.peak_live);
  expect_same(made.main.last, all.main.last);
  EXPECT_EQ(made.runs.size(), all.runs.size());
}

TEST(summary, snapshot_is_one_moment) {
  report::recording rows;
  rows.name = rows.file = "snapshot";
  rows.memory = report::memory_source::snapshot;
  rows.timed = rows.regions_join = false;
  rows.snapshot.emplace().pool = "training";
  EXPECT_EQ(report::summarize(rows).main.last.live, 0u) << "an empty pool";
  rows.streams = {2};
  rows.labels = {"", "weights"};
  rows.events = {{.pointer = 4096, .bytes = 4096, .action = trace_action::map},
                 {.pointer = 8192, .bytes = 4096, .action = trace_action::map},
                 {.pointer = 4096, .bytes = 1024, .label = 1},
                 {.pointer = 8192, .bytes = 256}};
  rows.initial = rows.events.size();
  auto const made = report::summarize(rows);
  EXPECT_EQ(made.main.allocations, 0u);
  EXPECT_EQ(made.main.last.live, 1280u);
  EXPECT_EQ(made.main.last.free, 8192u - 1280);
  EXPECT_EQ(made.main.last.largest_free, 3840u) << "a free range ends with its region";
  EXPECT_EQ(made.at_end.labels.front().name, "weights");
  EXPECT_TRUE(made.at_end.threads.empty());
  EXPECT_TRUE(made.columns.empty());
  ASSERT_EQ(made.frames.size(), 1u);
  ASSERT_EQ(made.frames[0].label_cells.size(), made.frames[0].cells.size());
  EXPECT_EQ(made.label_colors, (std::vector<std::string>{"weights", "no label"}));
  EXPECT_EQ(made.frames[0].label_cells[0], 2);
  EXPECT_EQ(made.frames[0].label_cells[4096 / made.cell_bytes], 3);
  rows.regions_join = true;
  EXPECT_EQ(report::summarize(rows).main.last.largest_free, 3840u) << "a block lies between";
  rows.events.pop_back();
  EXPECT_EQ(report::summarize(rows).main.last.largest_free, 3072u + 4096);
}

TEST(summary, maps_show_the_memory_of_their_rows) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    auto const rows = random_recording(seed, 300);
    auto const made = report::summarize(rows, few);
    std::vector<std::uint64_t> granules; // those that were ever mapped, in the order of the map
    for (auto const& run : made.runs)
      for (auto at = run.begin; at < run.end; at += granule) granules.push_back(at / granule);
    for (std::size_t const row : {made.main.peak_live.row, made.main.peak_reserved.row, made.main.worst.row})
      EXPECT_EQ(std::ranges::count(made.frames, row, [](auto const& frame) { return frame.when.row; }), 1);
    for (auto const& frame : made.frames) {
      naive_state const state{rows, frame.when.row};
      EXPECT_EQ(frame.when.live, state.when.live);
      EXPECT_EQ(frame.when.reserved, state.when.reserved);
      auto const of_cell = made.cell_bytes / granule;
      for (std::size_t cell = 0; cell < frame.cells.size(); ++cell) {
        bool mapped = false;
        std::uint64_t used = 0;
        for (auto i = cell * of_cell; i < std::min<std::uint64_t>(granules.size(), (cell + 1) * of_cell); ++i) {
          mapped |= state.mapped[granules[i]];
          used += state.used[granules[i]];
        }
        ASSERT_EQ(frame.cells[cell] == 0, !mapped) << cell;
        ASSERT_EQ(frame.cells[cell] > 1, used > 0) << cell;
        ASSERT_EQ(frame.shares[cell], 255 * used / of_cell) << cell;
      }
    }
  }
}

} // namespace
