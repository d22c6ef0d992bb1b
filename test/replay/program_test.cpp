// gpumem-replay as users run it, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "program_fixture.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace replay_test;

TEST_F(program, prints_a_table_for_each_resource_without_times_and_without_progress) {
  outcome const done = run({file("small.csv", small_trace), "--device", "simulated"});
  ASSERT_EQ(done.code, 0) << done.errors;
  for (char const* part : {"cuda on the simulated device", "pool_effort_1 on the simulated device", "operations",
                           "driver calls/1000", "peak live", "peak reserved", "utilization", "failures", "3.00 MiB"}) {
    EXPECT_NE(done.output.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(done.output.find(" ns"), std::string::npos);
  EXPECT_EQ(done.output.find("timeline"), std::string::npos);
  EXPECT_EQ(done.errors.find('\r'), std::string::npos);
}

TEST_F(program, leaves_out_results_of_the_simulated_device_that_depend_on_time) {
  outcome const all = run({file("small.csv", small_trace), "--device", "simulated", "--repeat", "1"});
  EXPECT_EQ(all.output.find("pool on the simulated device\n"), all.output.find("driver_pool on") + 7);
  EXPECT_NE(all.output.find("time means nothing"), std::string::npos);
  EXPECT_NE(all.output.find("the speed of this machine: pool binning."), std::string::npos);
  outcome const named = run({file("small.csv", small_trace), "--device", "simulated", "--resource", "pool"});
  EXPECT_NE(named.output.find("pool on the simulated device\n"), std::string::npos);
  EXPECT_EQ(named.output.find("Left out"), std::string::npos);
}

TEST_F(program, writes_an_object_for_each_trace_and_resource) {
  std::string const plain = file("plain.csv", small_trace);
  std::string const packed = gzip_file("packed.csv.gz", small_trace);
  auto const all = statistics({plain, packed});
  ASSERT_EQ(all.size(), 14U);
  for (auto const& object : all) {
    EXPECT_EQ(object["failures"], 0) << object;
    EXPECT_EQ(object["peak_live_bytes"], 3 << 20) << object;
    EXPECT_EQ(object["peak_reserved_bytes_by_pass"].size(), object["warm_passes"].get<std::size_t>() + 1) << object;
    EXPECT_GT(object["utilization"], 0.0) << object;
    EXPECT_LE(object["utilization"], 1.0) << object;
    EXPECT_EQ(object["operations_per_pass_and_thread"], 5) << object;
    EXPECT_EQ(object["streams_per_thread"], 2) << object;
    EXPECT_EQ(object["blocks_left_live_by_trace"], 1) << object;
    EXPECT_FALSE(object.contains("warm_ns_per_operation")) << object;
  }
  EXPECT_EQ(all[0]["trace"], "plain");
  EXPECT_EQ(all[1]["trace"], "packed");
  EXPECT_EQ(all[0]["resource"], "cuda");
  EXPECT_EQ(all[2]["resource"], "pool_effort_0");
  EXPECT_EQ(all[4]["resource"], "pool_effort_1");
  EXPECT_EQ(all[6]["resource"], "pool_chunks");
  EXPECT_EQ(all[8]["resource"], "async");
  EXPECT_EQ(all[10]["resource"], "arena");
  EXPECT_EQ(all[12]["resource"], "driver_pool");
  EXPECT_EQ(all[0]["peak_reserved_bytes"], 3 << 20);
}

TEST_F(program, counts_driver_calls) {
  std::string const trace =
      file("one.csv", header + row("allocate", "0xa00", "1048576") + row("free", "0xa00", "1048576"));
  auto const cuda = statistics({trace, "--resource", "cuda"});
  EXPECT_GE(cuda[0]["driver_calls_per_1000_operations"], 1000.0); // each call is passed to the driver
  auto const pool = statistics({trace, "--resource", "pool", "--repeat", "20"});
  EXPECT_LT(pool[0]["driver_calls_per_1000_operations"], cuda[0]["driver_calls_per_1000_operations"]);
}

TEST_F(program, limit_is_kept_and_causes_failures) {
  std::string const trace = file("small.csv", small_trace);
  auto const tight = statistics({trace, "--resource", "pool", "--limit", "2MiB", "--repeat", "1"});
  EXPECT_GT(tight[0]["failures"], 0);
  EXPECT_LE(tight[0]["peak_reserved_bytes"], 2 << 20);
  EXPECT_EQ(tight[0]["limit_bytes"], 2 << 20);
  auto const factor = statistics({trace, "--resource", "pool", "--limit", "2"});
  EXPECT_EQ(factor[0]["limit_bytes"], 6 << 20);
}

TEST_F(program, each_thread_replays_the_whole_trace) {
  auto const all = statistics({file("small.csv", small_trace), "--threads", "3", "--repeat", "2"});
  for (auto const& object : all) {
    EXPECT_EQ(object["threads"], 3);
    EXPECT_EQ(object["failures"], 0);
    EXPECT_GE(object["peak_live_bytes"], 3 << 20);
    EXPECT_LE(object["peak_live_bytes"], 9 << 20);
  }
  EXPECT_EQ(all[0]["resource"], "cuda");
  EXPECT_LE(all[0]["peak_live_bytes"], all[0]["peak_reserved_bytes"]) << "counted when threads have it at once";
}

TEST_F(program, each_number_of_threads_has_a_row) {
  std::string const trace = file("small.csv", small_trace);
  auto const all = statistics({"--resource=pool", "--threads", "1,2,4", trace, "--repeat", "1"});
  ASSERT_EQ(all.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i]["threads"], 1 << i);
  EXPECT_EQ(all[0]["peak_live_bytes"], 3 << 20);
}

TEST_F(program, foreign_streams_add_driver_calls) {
  std::string const trace = file("small.csv", small_trace);
  auto const own = statistics({trace, "--resource", "cuda"});
  auto const foreign = statistics({trace, "--resource", "cuda", "--foreign"});
  EXPECT_EQ(foreign[0]["foreign_streams"], true);
  EXPECT_EQ(foreign[0]["failures"], 0);
  EXPECT_GT(foreign[0]["driver_calls_per_1000_operations"], own[0]["driver_calls_per_1000_operations"]);
}

TEST_F(program, kernels_run_between_operations_and_are_not_counted_as_calls) {
  std::string const trace = file("small.csv", small_trace);
  auto const without = statistics({trace, "--resource", "cuda"});
  auto const with = statistics({trace, "--resource", "cuda", "--work", "20", "--every", "2"});
  EXPECT_EQ(with[0]["work_microseconds"], 20.0);
  EXPECT_EQ(with[0]["work_every_allocations"], 2);
  EXPECT_EQ(with[0]["failures"], 0);
  EXPECT_EQ(with[0]["driver_calls_per_1000_operations"], without[0]["driver_calls_per_1000_operations"]);
  EXPECT_FALSE(with[0].contains("device_time_ratio_warm"));
}

// Five calls in 1.5 ms.
std::string const timed_trace = header + "1,12:00:00.000000,allocate,0xa00,1048576,0x1\n"
                                         "1,12:00:00.000400,allocate,0xb00,2097152,0x2\n"
                                         "1,12:00:00.000400,free,0xa00,1048576,0x2\n"
                                         "1,12:00:00.001000,allocate,0xa00,512,0x1\n"
                                         "1,12:00:00.001500,free,0xb00,2097152,0x2\n";

TEST_F(program, recorded_pace_makes_the_same_calls) {
  std::string const trace = file("timed.csv", timed_trace);
  auto const paced = statistics({trace, "--pace", "recorded", "--repeat", "2"});
  auto const full = statistics({trace, "--repeat", "2"});
  ASSERT_EQ(paced.size(), full.size());
  for (std::size_t i = 0; i < paced.size(); ++i) {
    EXPECT_EQ(paced[i]["recorded_seconds"], 0.0015) << paced[i];
    EXPECT_EQ(paced[i]["failures"], 0) << paced[i];
    EXPECT_FALSE(paced[i].contains("share_of_time_warm")) << paced[i];
    EXPECT_FALSE(full[i].contains("recorded_seconds")) << full[i];
    for (char const* same : {"operations_per_pass_and_thread", "peak_live_bytes", "streams_per_thread", "warm_passes",
                             "blocks_left_live_by_trace"}) {
      EXPECT_EQ(paced[i][same], full[i][same]) << same << paced[i];
    }
  }
  auto const calls = [](auto const& rows) { return rows[0]["driver_calls_per_1000_operations"]; };
  EXPECT_EQ(calls(paced), calls(full)); // the resource `cuda` makes one driver call per call
  outcome const shown = run({trace, "--device", "simulated", "--pace", "recorded"});
  EXPECT_NE(shown.output.find("pool on the simulated device, at the recorded pace\n"), std::string::npos);
  EXPECT_EQ(shown.output.find("share of time"), std::string::npos);
}

TEST_F(program, recorded_pace_needs_times_in_every_trace) {
  std::string const timed = file("timed.csv", timed_trace);
  std::string const small = file("small.csv", small_trace);
  expect_refusal({timed, small, "--pace", "recorded"}, small + ": all its calls have the same time");
  expect_refusal({timed, "--pace", "recorded", "--work", "5"}, "--pace recorded and --work exclude each other");
}

TEST_F(program, help_is_no_error) {
  outcome const done = run({"--help"});
  EXPECT_EQ(done.code, 0);
  EXPECT_NE(done.output.find("--limit BYTES|FACTOR"), std::string::npos);
  EXPECT_NE(done.output.find("fragmentation  1 - largest free range / free bytes"), std::string::npos);
  EXPECT_NE(done.output.find("initial size   80 % of peak live"), std::string::npos);
}

TEST_F(program, refuses_what_is_malformed_with_file_and_line) {
  std::string const bad = path("bad.csv");
  std::vector<std::pair<std::string, std::string>> const cases{
      {"", ":1: is empty"},
      {"a,b\n", ":1: not a trace"},
      {header, ":1: there is nothing to replay"},
      {header + row("allocate", "0x1", "1") + "1,2,3\n", ":3: a row has 6 fields, this one has 3"},
      {header + row("allocate", "0x1", "1x"), ":2: bad size '1x'"},
      {header + row("free", "0x1", "1"), ":2: free of pointer 0x1, which was never allocated"},
      {header + row("allocate", "0x1", "1") + row("free", "0x1", "1") + row("free", "0x1", "1"),
       ":4: double free of pointer 0x1, freed in line 3"},
      {small_trace.substr(0, small_trace.size() - 4), ":6: cut short"}};
  for (auto const& [text, message] : cases) {
    file("bad.csv", text);
    expect_refusal({bad}, bad + message);
  }
}

TEST_F(program, refuses_cut_gzip_with_the_line_where_it_ends) {
  std::string const packed = gzip_file("cut.csv.gz", small_trace);
  std::filesystem::resize_file(packed, std::filesystem::file_size(packed) - 9);
  expect_refusal({packed}, packed + ":");
  expect_refusal({packed}, ": cut short: the gzip data ends here");
}

TEST_F(program, refuses_a_missing_file) {
  expect_refusal({path("none.csv")}, path("none.csv") + ": cannot be opened: No such file or directory");
}

TEST_F(program, malformed_trace_ends_the_run_before_anything_is_printed) {
  std::string const good = file("good.csv", small_trace);
  std::string const bad = file("bad.csv", header + "x\n");
  expect_refusal({good, bad}, bad + ":2: ");
}

TEST_F(program, refuses_unknown_options_and_resources) {
  std::string const trace = file("small.csv", small_trace);
  expect_refusal({trace, "--bogus"}, "unknown option '--bogus'");
  expect_refusal({trace, "--resource", "slab"}, "unknown resource 'slab'");
  expect_refusal({trace, "--limit", "many"}, "--limit: 'many' is neither");
}

TEST_F(program, replays_over_the_allocators_of_a_peer_library) {
  std::string const trace = file("small.csv", small_trace);
  auto const all = statistics({trace, "--peer", GPUMEM_FAKE_PEER, "--resource", "fake", "--resource", "pool"});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["resource"], "fake");
  EXPECT_EQ(all[0]["peak_live_bytes"], 3 << 20);
  EXPECT_EQ(all[0]["peak_reserved_bytes"], 4 << 20);
  EXPECT_EQ(all[0]["failures"], 0);
}

TEST_F(program, peer_libraries_run_with_kernels_and_at_the_recorded_pace) {
  std::string const trace = file("timed.csv", timed_trace);
  for (std::vector<std::string> const& how :
       {std::vector<std::string>{"--work", "20", "--every", "2"}, std::vector<std::string>{"--pace", "recorded"}}) {
    std::vector<std::string> arguments{trace, "--peer", GPUMEM_FAKE_PEER, "--resource=fake,driver_pool"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    auto const all = statistics(arguments);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0]["utilization"], 0.75);
    EXPECT_EQ(all[1]["resource"], "driver_pool");
    EXPECT_GE(all[1]["peak_reserved_bytes"], 3 << 20);
    for (auto const& object : all) {
      EXPECT_EQ(object["peak_live_bytes"], 3 << 20) << object;
      EXPECT_EQ(object["peak_reserved_bytes_by_pass"].size(), object["warm_passes"].get<std::size_t>() + 1) << object;
      EXPECT_EQ(object["failures"], 0) << object;
    }
  }
}

TEST_F(program, refuses_libraries_without_the_requested_peer) {
  std::string const trace = file("small.csv", small_trace);
  expect_refusal({trace, "--peer", trace}, "no peers in " + trace);
  expect_refusal({trace, "--peer", path("none.so")}, "none.so");
}

TEST_F(program, measures_what_it_can_beside_a_resource_that_cannot_replay) {
  std::string const trace = file("small.csv", small_trace);
  outcome const done = run({trace, "--device", "simulated", "--peer", GPUMEM_FAKE_PEER, "--resource",
                            "pool,absent,cuda", "--json", path("results.json")});
  EXPECT_EQ(done.code, 3);
  EXPECT_NE(done.errors.find("absent could not replay " + trace + ": "), std::string::npos) << done.errors;
  auto const rows = nlohmann::json::parse(read(path("results.json")));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["resource"], "pool");
  EXPECT_EQ(rows[1]["resource"], "cuda");
}

// A log has no events. The driver's pool gives a block again to the stream that freed it, in no order after the other.
TEST_F(program, frees_on_other_streams_are_a_property_of_the_trace) {
  std::string const trace =
      file("elsewhere.csv", header + row("allocate", "0xa00", "512", "0x1") + row("free", "0xa00", "512", "0x2") +
                                row("allocate", "0xb00", "256", "0x2") + row("free", "0xb00", "256", "0x1"));
  for (auto const& object : statistics({trace, "--resource", "pool,async,driver_pool,cuda"}))
    EXPECT_EQ(object["frees_on_other_streams"], 2) << object;
}

TEST_F(program, json_that_cannot_be_written_is_reported) {
  outcome const done =
      run({file("small.csv", small_trace), "--device", "simulated", "--json", path("none") + "/results.json"});
  EXPECT_EQ(done.code, 1);
  EXPECT_NE(done.errors.find("cannot be written"), std::string::npos) << done.errors;
}

} // namespace
