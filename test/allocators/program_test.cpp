// gpumem-bench as users run it, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using lines = std::vector<std::string>;

class bench_program : public testing::Test {
protected:
  bench_program() {
    folder_ = std::filesystem::temp_directory_path() / ("gpumem_bench_" + std::to_string(getpid()) + "_" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~bench_program() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string const& name) const { return (folder_ / name).string(); }

  lines read(std::string const& name) const {
    lines all;
    std::ifstream in(path(name));
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

  // Returns the exit code; the output is in the file "out", the error output in "err".
  int run(lines const& arguments) const {
    return run_program("'" GPUMEM_BENCH_PROGRAM "' --device simulated --operations 200", arguments);
  }
  int run_program(std::string command, lines const& arguments) const {
    for (auto const& each : arguments) command += " '" + each + "'";
    int const status = std::system((command + " >" + path("out") + " 2>" + path("err") + " </dev/null").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::filesystem::path folder_;
};

// One row of each kind that runs on the simulated device: pairs of calls, live blocks, single calls, threads.
std::string rows_of(std::string const& resources) {
  return "--benchmark_filter=(one_size_256B|live_1000_small|call_times|threads_2_one_stream)/(" + resources + ")/";
}

std::ptrdiff_t commas(std::string const& line) { return std::ranges::count(line, ','); }

TEST_F(bench_program, every_csv_line_has_the_same_columns) {
  ASSERT_EQ(run({rows_of("pool|pool_effort_0|pool_effort_1|driver_pool"), "--benchmark_format=csv"}), 0);
  auto const shown = read("out");
  ASSERT_EQ(shown.size(), 17U);
  EXPECT_TRUE(shown[0].starts_with("name,iterations,"));
  for (auto const& each : shown) EXPECT_EQ(commas(each), commas(shown[0])) << each;
  for (char const* row : {"one_size_256B/pool/", "live_1000_small/pool_effort_0/", "call_times/pool_effort_1/",
                          "threads_2_one_stream/driver_pool/"}) {
    EXPECT_EQ(std::ranges::count_if(shown, [&](auto const& each) { return each.starts_with('"' + std::string{row}); }),
              1)
        << row;
  }
}

TEST_F(bench_program, csv_file_is_written_beside_the_printed_names) {
  ASSERT_EQ(run({rows_of("pool"), "--benchmark_out=" + path("rows.csv"), "--benchmark_out_format=csv"}), 0);
  auto const written = read("rows.csv");
  ASSERT_EQ(written.size(), 5U);
  for (auto const& each : written) EXPECT_EQ(commas(each), commas(written[0])) << each;
  ASSERT_EQ(read("out").size(), 5U);
  EXPECT_EQ(read("out").front(), "the simulated device: rows run, no times are shown");
}

TEST_F(bench_program, csv_reports_failed_rows_and_continues) {
  EXPECT_EQ(run({"--peer", GPUMEM_FAKE_PEER, rows_of("fake|absent"), "--benchmark_format=csv"}), 1);
  auto const shown = read("out");
  ASSERT_EQ(shown.size(), 9U);
  for (auto const& each : shown) {
    EXPECT_EQ(commas(each), commas(shown[0])) << each;
    bool const absent = each.find("/absent/") != std::string::npos;
    EXPECT_EQ(each.find(",true,\"absent is not available on this device\",") != std::string::npos, absent) << each;
  }
}

TEST_F(bench_program, help_shows_the_options_of_the_program) {
  for (char const* word : {"--help", "-h"}) {
    ASSERT_EQ(run({word}), 0);
    std::string all;
    for (auto const& each : read("out")) all += each + "\n";
    for (char const* option : {"--device", "--peer", "--operations", "--milliseconds", "--benchmark_filter=REGEX"})
      EXPECT_NE(all.find(option), std::string::npos) << option;
  }
}

TEST_F(bench_program, numbers_out_of_range_are_refused) {
  struct number {
    char const* program;
    char const* option;
    char const* least;
    char const* most; // the words between the bounds depend on the version of CLI11
    lines values;
  };
  for (auto const& each : {number{GPUMEM_BENCH_PROGRAM, "--operations", "2", "1000000000", {"0", "1", "-1"}},
                           number{GPUMEM_BENCH_PROGRAM, "--milliseconds", "0", "10000", {"-1", "1e9"}},
                           number{GPUMEM_COMPLETION_BENCH, "--rounds", "1", "1000000", {"0", "-1"}},
                           number{GPUMEM_WAITING_BENCH, "--rounds", "1", "1000", {"0", "-1"}},
                           number{GPUMEM_WAITING_BENCH, "--tasks", "1", "10000", {"0"}},
                           number{GPUMEM_WAITING_BENCH, "--limit", "1048576", "", {"0", "1KiB"}},
                           number{GPUMEM_WAITING_BENCH, "--sigma", "0", "10", {"-1", "11"}},
                           number{GPUMEM_WAITING_BENCH, "--kernel", "0.001", "", {"0"}}}) {
    for (auto const& value : each.values) {
      EXPECT_NE(run_program("'" + std::string{each.program} + "'", {each.option, value}), 0) << each.option << value;
      auto const told = read("err");
      ASSERT_FALSE(told.empty()) << each.option;
      EXPECT_TRUE(told[0].starts_with(each.option)) << told[0];
      for (auto const* bound : {each.least, each.most}) EXPECT_NE(told[0].find(bound), std::string::npos) << told[0];
    }
  }
}

} // namespace
