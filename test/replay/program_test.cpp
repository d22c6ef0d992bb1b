// gpumem-replay as users run it, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

std::string const header = "Thread,Time,Action,Pointer,Size,Stream\n";

std::string row(std::string const& action, std::string const& pointer, std::string const& bytes,
                std::string const& stream = "0") {
  return "1,00:00:00.000000," + action + "," + pointer + "," + bytes + "," + stream + "\n";
}

// Two streams, one free on the other stream, one block left live; at most 3 MiB live.
std::string const small_trace = header + row("allocate", "0xa00", "1048576", "0x1") +
                                row("allocate", "0xb00", "2097152", "0x2") + row("free", "0xa00", "1048576", "0x2") +
                                row("allocate", "0xa00", "512", "0x1") + row("free", "0xb00", "2097152", "0x2");

struct outcome {
  int code = 0;
  std::string output;
  std::string errors;
};

class program : public testing::Test {
protected:
  program() {
    folder_ = std::filesystem::temp_directory_path() / ("gpumem_replay_" + std::to_string(getpid()) + "_" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~program() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string const& name) const { return (folder_ / name).string(); }

  std::string file(std::string const& name, std::string const& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  static std::string read(std::string const& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string gzip_file(std::string const& name, std::string const& text) const {
    gzFile const out = gzopen(path(name).c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return path(name);
  }

  outcome run(std::vector<std::string> const& arguments) const {
    std::string command = "'" GPUMEM_REPLAY_PROGRAM "'";
    for (std::string const& argument : arguments) command += " '" + argument + "'";
    int const status = std::system((command + " >" + path("out") + " 2>" + path("err") + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("out")), read(path("err"))};
  }

  // Returns the JSON of a run that must succeed.
  nlohmann::json statistics(std::vector<std::string> arguments) const {
    std::string const json = path("results.json");
    arguments.insert(arguments.end(), {"--device", "simulated", "--json", json});
    outcome const done = run(arguments);
    if (done.code != 0) throw std::runtime_error(done.errors);
    return nlohmann::json::parse(read(json));
  }

  // Expects that a run fails with this message and prints no results.
  void expect_refusal(std::vector<std::string> arguments, std::string const& message) const {
    std::string const json = path("refused.json");
    arguments.insert(arguments.end(), {"--device", "simulated", "--json", json});
    outcome const done = run(arguments);
    EXPECT_NE(done.code, 0);
    EXPECT_EQ(done.output, "");
    EXPECT_NE(done.errors.find(message), std::string::npos) << done.errors;
    EXPECT_FALSE(std::filesystem::exists(json));
  }

  std::filesystem::path folder_;
};

TEST_F(program, prints_a_table_for_each_resource_without_times_and_without_progress) {
  outcome const done = run({file("small.csv", small_trace), "--device", "simulated"});
  ASSERT_EQ(done.code, 0) << done.errors;
  for (char const* part : {"cuda on the simulated device", "pool on the simulated device", "operations",
                           "driver calls/1000", "peak live", "peak reserved", "utilization", "failures", "3.00 MiB"}) {
    EXPECT_NE(done.output.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(done.output.find(" ns"), std::string::npos);
  EXPECT_EQ(done.output.find("timeline"), std::string::npos);
  EXPECT_EQ(done.errors.find('\r'), std::string::npos);
}

TEST_F(program, writes_an_object_for_each_trace_and_resource) {
  std::string const plain = file("plain.csv", small_trace);
  std::string const packed = gzip_file("packed.csv.gz", small_trace);
  auto const all = statistics({plain, packed});
  ASSERT_EQ(all.size(), 18U);
  for (auto const& object : all) {
    EXPECT_EQ(object["failures"], 0) << object;
    EXPECT_EQ(object["peak_live_bytes"], 3 << 20) << object;
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
  EXPECT_EQ(all[2]["resource"], "pool");
  EXPECT_EQ(all[4]["resource"], "pool_effort_0");
  EXPECT_EQ(all[6]["resource"], "pool_effort_1");
  EXPECT_EQ(all[8]["resource"], "pool_chunks");
  EXPECT_EQ(all[10]["resource"], "async");
  EXPECT_EQ(all[12]["resource"], "arena");
  EXPECT_EQ(all[14]["resource"], "binning");
  EXPECT_EQ(all[16]["resource"], "driver_pool");
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
    EXPECT_LE(object["peak_live_bytes"], (9 << 20) * 17 / 16) << "a pool reports it to within 1/16";
  }
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

// The binary form of small_trace: a header and rows of 40 bytes, in another order than that of their times.
std::string binary_trace() {
  auto const number = [](std::uint64_t value, int bytes = 8) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  auto const row = [&](std::uint64_t time, std::uint64_t action, std::uint64_t pointer, std::uint64_t bytes,
                       std::uint64_t stream) {
    return number(time) + number(pointer) + number(bytes) + number(stream) + number(1, 4) + number(action, 4);
  };
  return "\x89gpumem\n" + number(1, 4) + number(0, 4) + number(0) + number(0) + number(0) +
         row(10, 0, 0xa00, 1 << 20, 1) + row(30, 1, 0xa00, 1 << 20, 2) + row(40, 0, 0xa00, 512, 1) +
         row(20, 0, 0xb00, 2 << 20, 2) + row(50, 1, 0xb00, 2 << 20, 2);
}

TEST_F(program, binary_trace_gives_the_figures_of_its_text) {
  auto const text = statistics({file("same.csv", small_trace)});
  for (std::string const& trace :
       {file("same.gpumemlog", binary_trace()), gzip_file("same.gpumemlog.gz", binary_trace())}) {
    auto binary = statistics({trace});
    for (auto& object : binary) object["file"] = text[0]["file"];
    EXPECT_EQ(binary, text);
  }
}

TEST_F(program, binary_trace_becomes_csv) {
  std::string const trace = file("a.gpumemlog", binary_trace());
  outcome const done = run({trace, "--csv", path("a.csv")});
  EXPECT_EQ(done.code, 0) << done.errors;
  EXPECT_EQ(done.output, "");
  EXPECT_EQ(read(path("a.csv")), small_trace);
  EXPECT_EQ(run({trace, "--csv", path("none") + "/a.csv"}).code, 1);
  EXPECT_EQ(run({trace, trace, "--csv", path("b.csv")}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("b.csv")));
}

TEST_F(program, refuses_malformed_binary_traces_with_the_number_of_the_row) {
  std::string const bad = path("bad.gpumemlog");
  std::string const whole = binary_trace();
  std::string damaged = whole;
  damaged[4 * 40 - 4] = 3; // the action of the third row
  std::vector<std::pair<std::string, std::string>> const cases{
      {whole.substr(0, 20), ":1: cut short"},
      {whole.substr(0, 40), ":1: there is nothing to replay"},
      {whole.substr(0, whole.size() - 1), ":6: cut short: this last row is not whole"},
      {damaged, ":4: bad action 3"},
      {whole + whole.substr(5 * 40), ":7: double free of pointer 0xb00, freed in line 6"}};
  for (auto const& [bytes, message] : cases) {
    file("bad.gpumemlog", bytes);
    expect_refusal({bad}, bad + message);
  }
  file("bad.gpumemlog", damaged);
  EXPECT_EQ(run({bad, "--csv", path("a.csv")}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(path("a.csv")));
}

TEST_F(program, help_is_no_error) {
  outcome const done = run({"--help"});
  EXPECT_EQ(done.code, 0);
  EXPECT_NE(done.output.find("--limit BYTES|FACTOR"), std::string::npos);
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
      EXPECT_EQ(object["failures"], 0) << object;
    }
  }
}

TEST_F(program, refuses_libraries_without_the_requested_peer) {
  std::string const trace = file("small.csv", small_trace);
  expect_refusal({trace, "--peer", GPUMEM_FAKE_PEER, "--resource", "absent"}, "absent is not available");
  expect_refusal({trace, "--peer", trace}, "no peers in " + trace);
  expect_refusal({trace, "--peer", path("none.so")}, "none.so");
}

TEST_F(program, json_that_cannot_be_written_is_reported) {
  outcome const done =
      run({file("small.csv", small_trace), "--device", "simulated", "--json", path("none") + "/results.json"});
  EXPECT_EQ(done.code, 1);
  EXPECT_NE(done.errors.find("cannot be written"), std::string::npos) << done.errors;
}

} // namespace
