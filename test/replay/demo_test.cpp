// The demo as users run it, on the simulated device: its three parts, its columns, and the figures that are the same in
// each run.
// SPDX-License-Identifier: Apache-2.0
#include "program_fixture.hpp"

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace replay_test;

std::vector<std::string> lines_of(std::string const& text) {
  std::istringstream in{text};
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The words of a table's row: its name, then what stands below GiB, use and calls of each allocator.
struct row_words {
  std::string name;
  std::vector<double> cells;
};

row_words words_of(std::string const& line) {
  std::istringstream in{line};
  row_words row;
  in >> row.name;
  for (double cell = 0; in >> cell;) row.cells.push_back(cell);
  return row;
}

class demo : public program {
protected:
  outcome show(std::vector<std::string> const& arguments) const { return run(arguments, GPUMEM_DEMO); }
  // Two short traces, one of them on several streams.
  outcome show_some() const {
    std::string const folder = GPUMEM_TRACES "/";
    return show({"--simulated", folder + "etl_skew.csv.gz", folder + "gnn_sample.csv.gz"});
  }
};

TEST_F(demo, fits_one_screen_without_times_and_is_the_same_each_time) {
  outcome const done = show_some();
  ASSERT_EQ(done.code, 0) << done.errors;
  EXPECT_EQ(done.errors, "");
  auto const lines = lines_of(done.output);
  constexpr std::size_t all_traces = 14, shown = 2;
  EXPECT_LE(lines.size() + all_traces - shown, 45U);
  for (auto const& line : lines) EXPECT_LE(line.size(), 100U) << line;
  EXPECT_NE(lines.at(0).find("on the simulated device, where no kernel runs and time means nothing: no times"),
            std::string::npos);
  EXPECT_EQ(done.output.find(" ns"), std::string::npos);
  EXPECT_EQ(done.output, show_some().output);
}

TEST_F(demo, table_has_each_trace_over_four_allocators) {
  auto const lines = lines_of(show_some().output);
  std::size_t at = 0;
  while (at < lines.size() && !lines[at].starts_with("trace ")) ++at;
  ASSERT_LT(at + 3, lines.size());
  std::string const titles = lines[at - 1];
  EXPECT_LT(titles.find("cuMemAlloc"), titles.find("driver's pool"));
  EXPECT_LT(titles.find("driver's pool"), titles.find("pool over chunks"));
  EXPECT_LT(titles.find("pool over chunks"), titles.find("pool, effort=1"));
  std::vector<std::string> const names{"etl_skew", "gnn_sample", "all"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    auto const row = words_of(lines[at + 1 + i]);
    EXPECT_EQ(row.name, names[i]);
    ASSERT_EQ(row.cells.size(), 12U) << lines[at + 1 + i];
    EXPECT_GT(row.cells[1], .95) << "cuMemAlloc reserves what is live, rounded up";
    EXPECT_EQ(row.cells[5], 1) << "the driver's pool takes a driver call for each operation";
    EXPECT_GE(row.cells[10], .94) << "utilization of the pool";
    EXPECT_LT(row.cells[9], row.cells[6]) << "the pool reserves less than one over chunks";
    EXPECT_LT(row.cells[11], 1) << "driver calls of the pool";
  }
  EXPECT_EQ(words_of(lines[at + 1]).cells[0], .99) << "GiB";
}

TEST_F(demo, batches_wait_within_the_limit_and_a_missing_order_is_found) {
  std::string const text = show_some().output;
  EXPECT_NE(text.find("16 began at once, 48 waited in line, 64 ended; at most 256 MiB were reserved."),
            std::string::npos);
  EXPECT_NE(text.find("\n     unordered access to block 2 (1048576 bytes):"
                      "\n     work 1 of stream 3 is not ordered after work 2 of stream 2\n"),
            std::string::npos);
  EXPECT_NE(text.find("With an event between the two: 0 findings."), std::string::npos);
  EXPECT_NE(text.find(" driver calls for 30232 operations."), std::string::npos);
  for (char const* next : {"\n  demo -v ", "\n  install PREFIX ", "\n  test "})
    EXPECT_NE(text.find(next), std::string::npos) << next;
}

TEST_F(demo, says_how_it_is_used) {
  outcome const help = show({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.output.find("usage: gpumem_demo"), std::string::npos);
  EXPECT_EQ(show({}).code, 2);
  outcome const unknown = show({"--bogus", "trace.csv"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.errors.find("gpumem_demo: unknown option --bogus"), std::string::npos);
  EXPECT_EQ(show({"--simulated", path("none.csv")}).code, 1);
}

} // namespace
