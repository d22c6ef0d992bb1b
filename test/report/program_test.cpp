// gpumem-report as users run it.
// SPDX-License-Identifier: Apache-2.0
#include "../replay/program_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace replay_test;

class report_program : public program {
protected:
  nlohmann::json figures(std::vector<std::string> arguments) const {
    std::string const json = path("figures.json");
    arguments.insert(arguments.end(), {"--json", json});
    outcome const done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.errors;
    return nlohmann::json::parse(read(json));
  }
  void refuses(std::vector<std::string> const& arguments, std::string const& message) const {
    outcome const done = run(arguments);
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(done.output, "");
    EXPECT_NE(done.errors.find(message), std::string::npos) << done.errors;
  }
};

TEST_F(report_program, log_without_memory_is_replayed) {
  auto const made = figures({file("t.csv", small_trace)})[0];
  EXPECT_EQ(made["name"], "t");
  EXPECT_EQ(made["memory"], "replay");
  EXPECT_EQ(made["allocations"], 3);
  EXPECT_EQ(made["frees"], 2);
  EXPECT_EQ(made["peak_live"]["live_bytes"], 3 << 20);
  EXPECT_EQ(made["peak_reserved"]["reserved_bytes"], 4 << 20);
  EXPECT_EQ(made["end"]["live_bytes"], 512);
  EXPECT_EQ(made["holders_at_peak"]["streams"][0]["name"], "stream 0x2");
  EXPECT_EQ(made["served_by"]["unknown"], 0);
  outcome const done = run({path("t.csv"), "--json", path("j")});
  EXPECT_NE(done.output.find("Reserved bytes, addresses and reasons for reuse are those of a replay"),
            std::string::npos);
}

TEST_F(report_program, figures_of_a_recorded_trace) {
  std::string const trace = std::string{GPUMEM_TRACES} + "/etl_skew.csv.gz";
  auto const made = figures({trace})[0];
  EXPECT_EQ(made["allocations"].get<int>() + made["frees"].get<int>(), 18'806);
  std::uint64_t const live = made["peak_live"]["live_bytes"], reserved = made["peak_reserved"]["reserved_bytes"];
  EXPECT_LE(live, reserved);
  EXPECT_LE(reserved, live + live / 8);
  std::uint64_t held = 0;
  for (auto const& each : made["holders_at_peak"]["streams"]) held += each["bytes"].get<std::uint64_t>();
  EXPECT_EQ(held, live);
  auto const page = [&] {
    outcome const done = run({trace, "-o", path("page.html"), "--svg", path("p.svg")});
    EXPECT_EQ(done.code, 0) << done.errors;
    return read(path("page.html")) + read(path("p.svg"));
  };
  EXPECT_TRUE(page() == page()) << "the replay is the same each time";
}

TEST_F(report_program, several_files_stand_side_by_side) {
  auto const made = figures({file("a.csv", small_trace), gzip_file("b.csv.gz", small_trace)});
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[1]["name"], "b");
  EXPECT_EQ(made[0]["peak_reserved"], made[1]["peak_reserved"]);
}

TEST_F(report_program, page_is_named_after_the_first_file) {
  std::filesystem::current_path(folder_);
  EXPECT_EQ(run({file("a.log", small_trace)}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(path("a.html")));
  std::filesystem::current_path("/");
}

TEST_F(report_program, bad_input_says_what_and_where) {
  refuses({}, "no FILE was given");
  refuses({path("missing.csv")}, "missing.csv: cannot be opened");
  refuses({file("empty.csv", "")}, "empty.csv:1: is empty");
  refuses({file("rows.csv", header)}, "rows.csv:1: there are no rows");
  refuses({file("cut.csv", small_trace.substr(0, small_trace.size() - 1))}, "cut.csv:6: cut short");
  refuses({file("cut.gz", read(gzip_file("whole.gz", small_trace)).substr(0, 40))}, "cut.gz");
  refuses({file("foreign.json", "{\"a\": 1}\n")}, "foreign.json: no snapshot of gpumem");
  refuses({file("foreign.txt", "a text\n")}, "foreign.txt:1: not a trace");
  refuses({file("cut.log", "\x89gpumem\n\x02")}, "cut.log:1: cut short");
  refuses({file("wide.csv", header + row("allocate", "0xffffffffffffff00", "4096"))},
          "wide.csv:2: memory at addresses that no memory has");
  refuses({file("twice.csv", header + row("allocate", "0xa00", "8") + row("allocate", "0xa00", "8"))},
          "twice.csv:3: pointer 0xa00 is allocated while it is live");
  refuses({path("rows.csv"), "--bogus"}, "unknown option '--bogus'");
  refuses({path("rows.csv"), "--svg"}, "--svg");
  refuses(std::vector<std::string>(9, path("rows.csv")), "more than 8 FILEs");
  std::string const whole = file("t.csv", small_trace);
  for (char const* option : {"--page", "--svg", "--json"})
    refuses({whole, option, path("no/such/folder")}, "no/such/folder");
}

} // namespace
