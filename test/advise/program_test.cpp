// gpumem-advise as users run it, on traces for which the best resource is known.
// SPDX-License-Identifier: Apache-2.0
#include "../replay/program_fixture.hpp"

#include "traces.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace replay_test;
using namespace advise_test;

class adviser : public program {
protected:
  // Returns the JSON of a run that must end with this status.
  nlohmann::json advise(std::vector<std::string> arguments, int status = 0) const {
    std::string const json = path("advice.json");
    arguments.insert(arguments.end(), {"--json", json});
    outcome const done = run(arguments);
    EXPECT_EQ(done.code, status) << done.errors;
    return nlohmann::json::parse(read(json));
  }

  std::string answer(std::string const& text, std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.begin(), file("t.csv", text));
    auto const advice = advise(arguments);
    return advice["answer"];
  }

  void refuses(std::vector<std::string> const& arguments, std::string const& message) const {
    outcome const done = run(arguments);
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(done.output, "");
    EXPECT_NE(done.errors.find(message), std::string::npos) << done.errors;
  }
};

TEST_F(adviser, names_the_pool_where_the_time_pays_for_moves) { EXPECT_EQ(answer(scattered(20'000)), "pool"); }

TEST_F(adviser, names_another_effort_where_it_does_not) { EXPECT_EQ(answer(scattered(0)), "pool_effort_1"); }

TEST_F(adviser, names_blocks_of_one_size) {
  trace_writer trace{20};
  for (int i = 0; i < 400; ++i) {
    if (i >= 16) trace.free(0x1000 + 16 * (i - 16), 3 << 20);
    trace.allocate(0x1000 + 16 * i, 3 << 20);
  }
  EXPECT_EQ(answer(trace.text()), "fixed");
}

TEST_F(adviser, names_the_driver_for_a_few_blocks_that_stay) {
  trace_writer trace{20};
  for (std::uint64_t i = 1; i <= 6; ++i) trace.allocate(0x1000 * i, i << 30);
  EXPECT_EQ(answer(trace.text()), "cuda");
}

TEST_F(adviser, names_a_limit_where_threads_want_more_than_there_is) {
  std::string const text = crowded(4, 2);
  EXPECT_NE(answer(text), "limit");
  EXPECT_EQ(answer(text, {"--memory", "128MiB"}), "limit");
  outcome const done = run({path("t.csv"), "--memory", "128MiB"});
  for (char const* part : {"Take the pool with a limit.", ".limit = 134217728", "\"limit=134217728\"",
                           "gpumem_torch.install(\"limit=134217728\")", "co_await memory.acquire"}) {
    EXPECT_NE(done.output.find(part), std::string::npos) << part << "\n" << done.output;
  }
}

TEST_F(adviser, says_that_nothing_completes) {
  auto const advice = advise({file("t.csv", small_trace), "--memory", "2MiB"}, 1);
  EXPECT_FALSE(advice.contains("answer"));
  for (auto const& each : advice["candidates"]) EXPECT_NE(each["verdict"], "chosen");
  EXPECT_NE(run({path("t.csv"), "--memory", "2MiB"}).output.find("No resource completes the trace in 2.00 MiB."),
            std::string::npos);
}

TEST_F(adviser, finds_the_smallest_limit_and_the_row_that_fails_below_it) {
  auto const advice = advise({file("t.csv", small_trace), "--bisect"});
  EXPECT_EQ(advice["least_limit_bytes"], 4 << 20);
  EXPECT_EQ(advice["failed_row_below"], 3);
  EXPECT_NE(run({path("t.csv"), "--bisect"}).output.find("The smallest limit: 4.00 MiB"), std::string::npos);
}

TEST_F(adviser, the_same_trace_gives_the_same_answer) {
  std::string const name = file("t.csv", random_trace(1, 2'000, 100, 8 << 20));
  EXPECT_EQ(run({name}).output, run({name}).output);
}

TEST_F(adviser, bad_input_says_what_and_where) {
  refuses({}, "no TRACE was given");
  refuses({path("missing.csv")}, "missing.csv");
  refuses({file("empty.csv", "")}, "empty.csv");
  refuses({file("rows.csv", header)}, "rows.csv:1: there is nothing to replay");
  refuses({file("cut.csv", small_trace.substr(0, small_trace.size() - 1))}, "cut.csv:6: ");
  refuses({file("cut.gz", read(gzip_file("whole.gz", small_trace)).substr(0, 40))}, "cut.gz");
  refuses({file("foreign.json", "{\"a\": 1}\n")}, "foreign.json:1: ");
  refuses({path("rows.csv"), "--bogus"}, "unknown option '--bogus'");
  refuses({path("rows.csv"), path("rows.csv")}, "one file at a time");
  refuses({path("rows.csv"), "--memory", "much"}, "--memory: 'much' is no size");
  refuses({file("t.csv", small_trace), "--json", path("no/such/folder.json")}, "folder.json");
}

} // namespace
