// The table and the JSON output: what they contain, and what they leave out.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

import replay;

namespace {

replay::result simulated_row(std::string const& trace, std::string const& resource) {
  replay::result row;
  row.trace = trace;
  row.file = "traces/" + trace + ".csv.gz";
  row.resource = resource;
  row.device = "simulated device";
  row.warm_passes = 5;
  row.operations = 72'457;
  row.streams = 7;
  row.driver_calls_cold = 12.25;
  row.driver_calls_warm = 0.5;
  row.peak_live_bytes = 3ULL << 30;
  row.peak_reserved_bytes = 4ULL << 30;
  row.suggested_initial_bytes = 12ULL << 28;
  row.fragmentation = .125;
  row.failures = 1'234;
  row.blocks_live_at_end = 3;
  return row;
}

replay::result timed_row(std::string const& trace, std::string const& resource) {
  replay::result row = simulated_row(trace, resource);
  row.device = "NVIDIA H200";
  row.times = replay::measured_times{
      .cold = 24'123.4, .warm = 31.25, .call = {12.5, 680, 15'900, 21.5}, .device_time = {}, .pace = {}};
  return row;
}

TEST(table, table_has_no_times_on_a_simulated_device) {
  EXPECT_EQ(replay::format_tables(std::vector{simulated_row("gpt_train", "pool"), simulated_row("gnn", "pool")}),
            "pool on simulated device\n"
            "trace      operations  driver calls/1000  peak live  peak reserved  utilization  fragmentation  "
            "initial size  failures  left live\n"
            "gpt_train      72,457                0.5   3.00 GiB       4.00 GiB        0.750          0.125  "
            "    3.00 GiB     1,234          3\n"
            "gnn            72,457                0.5   3.00 GiB       4.00 GiB        0.750          0.125  "
            "    3.00 GiB     1,234          3\n");
}

TEST(table, table_has_times_on_a_device) {
  replay::result row = timed_row("gpt_train", "cuda");
  row.fragmentation.reset();
  EXPECT_EQ(replay::format_tables(std::vector{row}),
            "cuda on NVIDIA H200; one call includes 21.5 ns of clock\n"
            "trace      operations  cold ns/op  warm ns/op  p50 ns  p99 ns  max ns  driver calls/1000  peak "
            "live  peak "
            "reserved  utilization  initial size  failures  left live\n"
            "gpt_train      72,457      24,123        31.2    12.5     680  15,900                0.5   3.00 "
            "GiB       "
            "4.00 GiB        0.750      3.00 GiB     1,234          3\n");
}

TEST(table, table_has_device_times_if_kernels_run) {
  replay::result row = timed_row("gpt_train", "pool");
  row.work_microseconds = 20;
  row.work_every = 3;
  row.threads = 2;
  row.foreign_streams = true;
  row.times->device_time = replay::device_time_ratios{1.5, 1.0049, 12.0};
  std::string const text = replay::format_tables(std::vector{row});
  EXPECT_EQ(text.substr(0, text.find('\n')), "pool on NVIDIA H200, foreign streams, a kernel of "
                                             "20 us after every 3. allocation; one call "
                                             "includes 21.5 ns of clock");
  EXPECT_NE(text.find("\ngpt_train x 2  "), std::string::npos) << text;
  EXPECT_NE(text.find("  initial size  timeline ratio  "), std::string::npos) << text;
  EXPECT_NE(text.find("      3.00 GiB           1.005  "), std::string::npos) << text;
}

replay::result paced_row() {
  replay::result row = timed_row("gpt_train", "pool");
  row.recorded_seconds = 3.5;
  row.times->pace = replay::pace_times{.share_cold = 0.25, .share_warm = 0.01234, .seconds_warm = 3.75};
  return row;
}

TEST(table, table_at_the_recorded_pace_has_the_share_of_time) {
  std::string const text = replay::format_tables(std::vector{paced_row()});
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "pool on NVIDIA H200, at the recorded pace; one call includes 21.5 ns of clock");
  EXPECT_NE(text.find("  initial size  share of time  "), std::string::npos) << text;
  EXPECT_NE(text.find("      3.00 GiB         0.0123  "), std::string::npos) << text;
}

TEST(table, each_resource_has_a_table) {
  std::string const text = replay::format_tables(
      std::vector{simulated_row("a", "cuda"), simulated_row("a", "pool"), simulated_row("b", "cuda")});
  EXPECT_EQ(text.find("cuda on"), 0U);
  EXPECT_EQ(text.find("cuda on", 1), std::string::npos);
  EXPECT_LT(text.find("\nb "), text.find("\npool on"));
}

TEST(table, resource_that_does_not_know_its_free_ranges_has_no_fragmentation) {
  std::vector rows{simulated_row("a", "pool"), simulated_row("b", "pool")};
  rows[1].fragmentation.reset();
  std::string const text = replay::format_tables(rows);
  EXPECT_NE(text.find("0.750              -  "), std::string::npos) << text;
  auto const all = nlohmann::json::parse(replay::format_json(rows));
  EXPECT_EQ(all[0]["fragmentation"], .125);
  EXPECT_FALSE(all[1].contains("fragmentation"));
}

TEST(json, json_has_an_object_for_each_trace_and_resource) {
  auto const all = nlohmann::json::parse(
      replay::format_json(std::vector{simulated_row("gpt_train", "cuda"), timed_row("gpt_train", "pool")}));
  ASSERT_TRUE(all.is_array());
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["trace"], "gpt_train");
  EXPECT_EQ(all[0]["resource"], "cuda");
  EXPECT_EQ(all[0]["utilization"], 0.75);
  EXPECT_EQ(all[0]["failures"], 1234);
  EXPECT_EQ(all[0]["device"], "simulated device");
  EXPECT_EQ(all[0]["peak_live_bytes"], 3ULL << 30);
  EXPECT_EQ(all[0]["peak_reserved_bytes"], 4ULL << 30);
  EXPECT_EQ(all[0]["suggested_initial_bytes"], 3ULL << 30);
  EXPECT_EQ(all[0]["blocks_left_live_by_trace"], 3);
  EXPECT_EQ(all[1]["warm_ns_per_operation"], 31.25);
  EXPECT_EQ(all[1]["call_p99_ns"], 680);
}

TEST(json, json_at_the_recorded_pace_has_the_share_of_time) {
  auto const all = nlohmann::json::parse(replay::format_json(std::vector{paced_row(), timed_row("a", "pool")}));
  EXPECT_EQ(all[0]["recorded_seconds"], 3.5);
  EXPECT_EQ(all[0]["share_of_time_cold"], 0.25);
  EXPECT_EQ(all[0]["share_of_time_warm"], 0.01234);
  EXPECT_EQ(all[0]["pass_seconds_warm"], 3.75);
  EXPECT_FALSE(all[1].contains("recorded_seconds"));
  EXPECT_FALSE(all[1].contains("share_of_time_warm"));
}

TEST(json, json_has_no_times_on_a_simulated_device) {
  auto const row = nlohmann::json::parse(replay::format_json(std::vector{simulated_row("a", "pool")}))[0];
  for (auto const& [name, value] : row.items()) {
    EXPECT_EQ(name.find("_ns"), std::string::npos) << name;
    EXPECT_EQ(name.find("timeline"), std::string::npos) << name;
  }
}

TEST(json, file_name_that_is_not_utf8_is_written) {
  auto const all = nlohmann::json::parse(replay::format_json(std::vector{simulated_row("\xff\xfe", "pool")}));
  EXPECT_TRUE(all[0]["trace"].is_string());
}

TEST(write_whole, file_is_replaced_and_failed_writes_leave_none) {
  auto const folder = std::filesystem::temp_directory_path() / "gpumem_write_whole";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "taken");
  replay::write_whole((folder / "a.json").string(), "first");
  replay::write_whole((folder / "a.json").string(), "second");
  std::ifstream in(folder / "a.json");
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(in), {}}), "second");
  EXPECT_THROW(replay::write_whole((folder / "none" / "b.json").string(), "x"), std::runtime_error);
  EXPECT_THROW(replay::write_whole((folder / "taken").string(), "x"), std::runtime_error);
  std::vector<std::string> left;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"a.json", "taken"}));
  std::filesystem::remove_all(folder);
}

} // namespace
