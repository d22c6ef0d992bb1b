// The CSV output of gpumem-bench: all rows have the same columns, whichever metrics they have.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "reporters.hpp"

namespace {

using run = benchmark::BenchmarkReporter::Run;

run row(std::string const& name, std::initializer_list<std::pair<char const*, double>> statistics) {
  run made;
  made.run_name.function_name = name;
  made.iterations = 4;
  made.time_unit = benchmark::kNanosecond;
  made.real_accumulated_time = 8e-9;
  made.cpu_accumulated_time = 4e-9;
  for (auto const& [metric, value] : statistics) made.counters[metric] = value;
  return made;
}

std::vector<std::string> lines_of(std::vector<run> const& rows, bool simulated) {
  std::stringstream text;
  bench::csv_reporter report{simulated};
  report.SetOutputStream(&text);
  report.ReportContext({});
  for (auto const& each : rows) report.ReportRuns({each});
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::vector<run> two_kinds_of_rows() {
  return {row("one \"size\"", {{"ns_per_op", 12.5}, {"Mops", 80}}), row("timeline", {{"reserved_MiB", 256}})};
}

TEST(csv_reporter, every_row_has_the_same_columns) {
  auto const lines = lines_of(two_kinds_of_rows(), false);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("name,iterations,real_time,cpu_time,time_unit,error_occurred,error_message,"));
  for (auto const* const name : bench::metric_names) {
    EXPECT_NE(lines[0].find(std::string{",\""} + name + '"'), std::string::npos) << name;
  }
  EXPECT_EQ(lines[1], "\"one \"\"size\"\"\",4,2,1,ns,,,12.5,80,,,,,,,,,,,,,,");
  EXPECT_EQ(lines[2], "\"timeline\",4,2,1,ns,,,,,,,,,,,,,,,,,,256");
}

TEST(csv_reporter, rows_have_no_values_on_the_simulated_device) {
  auto const lines = lines_of(two_kinds_of_rows(), true);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], "\"one \"\"size\"\"\",4,,,ns,,,,,,,,,,,,,,,,,,");
  EXPECT_EQ(lines[2], "\"timeline\",4,,,ns,,,,,,,,,,,,,,,,,,");
}

TEST(bench_metrics, metric_names_are_distinct) {
  auto names = std::vector<std::string>(bench::metric_names.begin(), bench::metric_names.end());
  EXPECT_EQ(names.back(), "reserved_MiB");
  EXPECT_EQ(static_cast<std::size_t>(bench::metric::reserved_mib) + 1, names.size());
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

bench::formats formats_of(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (auto& each : words) arguments.push_back(each.data());
  return bench::formats_of(arguments);
}

TEST(report_formats, formats_follow_the_options_of_google_benchmark) {
  auto const plain = formats_of({"gpumem-bench", "--device", "cuda"});
  EXPECT_TRUE(plain.console);
  EXPECT_FALSE(plain.csv_shown);
  EXPECT_FALSE(plain.csv_written);
  EXPECT_FALSE(formats_of({"--benchmark_format=json"}).console);
  EXPECT_TRUE(formats_of({"--benchmark_format=csv"}).csv_shown);
  EXPECT_TRUE(formats_of({"--benchmark_out=a", "--benchmark_out_format=csv"}).csv_written);
  EXPECT_FALSE(formats_of({"--benchmark_out_format=csv"}).csv_written);
  setenv("BENCHMARK_FORMAT", "csv", 1);
  EXPECT_TRUE(formats_of({}).csv_shown);
  EXPECT_TRUE(formats_of({"--benchmark_format=console"}).console);
  unsetenv("BENCHMARK_FORMAT");
}

} // namespace
