// The command line of the replay tool: what it means, and which errors it reports.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

import replay;

namespace {

std::vector<replay::resource_name> const known{{"cuda", false}, {"pool", true}, {"arena", true}};
using words = std::vector<std::string>;

replay::options parse(words arguments) { return replay::parse_options(std::move(arguments), known).chosen; }

std::string refusal(words arguments) {
  try {
    parse(std::move(arguments));
  } catch (replay::usage_error const& error) { return error.what(); }
  return "accepted";
}

TEST(options, options_have_defaults) {
  replay::options const chosen = parse({"a.csv"});
  EXPECT_EQ(chosen.traces, words{"a.csv"});
  EXPECT_EQ(chosen.resources, (words{"cuda", "pool", "arena"}));
  EXPECT_EQ(chosen.device, replay::device_choice::automatic);
  EXPECT_EQ(chosen.threads, std::vector{1U});
  EXPECT_EQ(chosen.repeat, 5U);
  EXPECT_FALSE(chosen.limit);
  EXPECT_FALSE(chosen.foreign);
  EXPECT_FALSE(chosen.work);
  EXPECT_EQ(chosen.pace, replay::pace_choice::full);
  EXPECT_EQ(chosen.json, "");
  EXPECT_EQ(chosen.csv, "");
}

TEST(options, all_leaves_out_resources_that_must_be_named) {
  std::vector<replay::resource_name> const some{{"cuda", false}, {"fixed", true, false, false}};
  EXPECT_EQ(replay::parse_options({"a.csv"}, some).chosen.resources, words{"cuda"});
  EXPECT_EQ(replay::parse_options({"a.csv", "--resource", "fixed"}, some).chosen.resources, words{"fixed"});
}

TEST(options, all_options_are_read) {
  replay::options const chosen =
      parse({"a.csv",     "b.csv.gz", "--resource", "pool", "arena",   "--device", "simulated",
             "--threads", "3",        "--repeat",   "7",    "--limit", "1.5GiB",   "--foreign",
             "--work",    "20.5",     "--every",    "4",    "--json",  "out.json"});
  EXPECT_EQ(chosen.traces, (words{"a.csv", "b.csv.gz"}));
  EXPECT_EQ(chosen.resources, (words{"pool", "arena"}));
  EXPECT_EQ(chosen.device, replay::device_choice::simulated);
  EXPECT_EQ(chosen.threads, std::vector{3U});
  EXPECT_EQ(chosen.repeat, 7U);
  EXPECT_EQ(chosen.limit, (replay::limit_choice{.bytes = 3ULL << 29}));
  EXPECT_TRUE(chosen.foreign);
  EXPECT_EQ(chosen.work, (replay::work_choice{20.5, 4}));
  EXPECT_EQ(chosen.json, "out.json");
}

TEST(options, threads_may_be_several_numbers) {
  replay::options const chosen = parse({"--threads", "1,2,16", "a", "b.csv"});
  EXPECT_EQ(chosen.threads, (std::vector{1U, 2U, 16U}));
  EXPECT_EQ(chosen.traces, (words{"a", "b.csv"}));
}

TEST(options, csv_takes_one_trace) {
  EXPECT_EQ(parse({"a.gpumemlog", "--csv", "a.csv"}).csv, "a.csv");
  EXPECT_EQ(parse({"a.gpumemlog", "--csv", "a.csv"}).traces, words{"a.gpumemlog"});
  EXPECT_EQ(refusal({"a.csv", "b.csv", "--csv", "c.csv"}), "--csv takes one TRACE");
}

TEST(options, resources_may_be_repeated_and_separated_by_commas) {
  EXPECT_EQ(parse({"--resource=pool,cuda", "a.csv"}).resources, (words{"pool", "cuda"}));
  EXPECT_EQ(parse({"a.csv", "--resource", "pool", "--resource", "pool"}).resources, (words{"pool"}));
  EXPECT_EQ(parse({"a.csv", "--resource", "pool", "all"}).resources, (words{"pool", "cuda", "arena"}));
}

TEST(options, traces_may_follow_resources) {
  replay::options const chosen = parse({"--resource", "pool", "b.csv", "dir/c", "--repeat", "2"});
  EXPECT_EQ(chosen.resources, words{"pool"});
  EXPECT_EQ(chosen.traces, (words{"b.csv", "dir/c"}));
}

TEST(options, limit_omits_resources_that_accept_none) {
  EXPECT_EQ(parse({"a.csv", "--limit", "1GiB"}).resources, (words{"pool", "arena"}));
}

TEST(options, kernels_run_after_each_allocation_by_default) {
  EXPECT_EQ(parse({"a.csv", "--work", "20"}).work, (replay::work_choice{20, 1}));
}

TEST(options, recorded_pace_is_for_one_thread_without_kernels) {
  EXPECT_EQ(parse({"a.csv", "--pace", "recorded", "--threads", "1"}).pace, replay::pace_choice::recorded);
  EXPECT_EQ(parse({"a.csv", "--pace", "full", "--threads", "2", "--work", "5"}).pace, replay::pace_choice::full);
  EXPECT_EQ(refusal({"a.csv", "--pace", "recorded", "--work", "5"}), "--pace recorded and --work exclude each other");
  EXPECT_EQ(refusal({"a.csv", "--pace", "recorded", "--threads", "2"}),
            "--pace recorded is for one thread, not for --threads");
}

TEST(options, limit_is_bytes_or_a_factor) {
  EXPECT_EQ(replay::parse_limit("1.05"), (replay::limit_choice{.factor = 1.05}));
  EXPECT_EQ(replay::parse_limit("2"), (replay::limit_choice{.factor = 2}));
  EXPECT_EQ(replay::parse_limit("1024"), (replay::limit_choice{.bytes = 1024}));
  EXPECT_EQ(replay::parse_limit("512B"), (replay::limit_choice{.bytes = 512}));
  EXPECT_EQ(replay::parse_limit("1.05").of(1000), 1050U);
  EXPECT_EQ(replay::parse_limit("1MiB").of(1000), 1U << 20);
  for (char const* text : {"", "0", "0.0", "-1", "1.2.3", "lots", "1.05x", "0GiB", "1024.5"}) {
    EXPECT_THROW(replay::parse_limit(text), replay::usage_error) << text;
  }
}

TEST(options, help_returns_a_text_without_an_error) {
  auto const parsed = replay::parse_options({"--help"}, known);
  ASSERT_TRUE(parsed.help);
  for (char const* option : {"TRACE", "--resource", "--device", "--threads", "--repeat", "--limit", "--foreign",
                             "--work", "--every", "--pace", "--json", "--csv", "cuda, pool, arena, all"}) {
    EXPECT_NE(parsed.help->find(option), std::string::npos) << option;
  }
}

TEST(options, wrong_option_is_named) {
  EXPECT_EQ(refusal({"--bogus"}), "unknown option '--bogus'");
  EXPECT_EQ(refusal({"a.csv", "--bogus", "3"}), "unknown option '--bogus'");
  EXPECT_EQ(refusal({}), "no TRACE was given");
  EXPECT_EQ(refusal({"a.csv", "--resource", "slab"}), "unknown resource 'slab' (known: cuda, pool, arena, all)");
  EXPECT_EQ(refusal({"a.csv", "--resource", "cuda", "--limit", "1GiB"}), "resource 'cuda' takes no --limit");
  EXPECT_EQ(refusal({"a.csv", "--limit", "many"}),
            "--limit: 'many' is neither a size (1.5GiB) nor a factor of peak live (1.05)");
  for (words const& arguments :
       {words{"a.csv", "--device", "tpu"}, words{"a.csv", "--threads", "0"}, words{"a.csv", "--threads", "two"},
        words{"a.csv", "--threads", "2,0"}, words{"a.csv", "--repeat", "0"}, words{"a.csv", "--work", "0"},
        words{"a.csv", "--work", "-3"}, words{"a.csv", "--pace", "slow"}, words{"a.csv", "--every", "0", "--work", "3"},
        words{"a.csv", "--every", "2"}, words{"a.csv", "--json"}}) {
    EXPECT_NE(refusal(arguments).find(arguments[1].substr(2)), std::string::npos) << refusal(arguments);
  }
}

} // namespace
