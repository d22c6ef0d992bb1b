// Operations made from a trace: dense numbers, peaks, blocks left live, and every contradiction reported with its line.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

import gpumem;
import replay;

namespace {

struct trace_text {
  std::string text = std::string(gpumem::extend::trace_header) + "\n";

  trace_text& allocate(std::string const& pointer, std::string const& bytes, std::string const& stream = "0") {
    return row("allocate", pointer, bytes, stream);
  }
  trace_text& free(std::string const& pointer, std::string const& bytes, std::string const& stream = "0") {
    return row("free", pointer, bytes, stream);
  }
  trace_text& row(std::string const& action, std::string const& pointer, std::string const& bytes,
                  std::string const& stream) {
    text += "1,00:00:00.000000," + action + "," + pointer + "," + bytes + "," + stream + "\n";
    return *this;
  }
};

replay::plan plan_of(trace_text const& trace) { return replay::make_plan(trace.text, "t.csv"); }

std::string error_of(trace_text const& trace) {
  try {
    plan_of(trace);
  } catch (gpumem::extend::trace_error const& error) { return error.what(); }
  return "no error";
}

TEST(plan, numbers_blocks_and_streams_densely_and_reuses_block_numbers) {
  replay::plan const plan = plan_of(trace_text{}
                                        .allocate("0xa00", "256", "0x77")
                                        .allocate("0xb00", "512", "0")
                                        .free("0xa00", "256", "0")
                                        .allocate("0xc00", "1024", "0x99")
                                        .free("0xb00", "512", "0x77"));
  std::vector<replay::operation> const expected{
      {256, 0, 0, 1}, {512, 1, 1, 1}, {256, 0, 1, 0}, {1024, 0, 2, 1}, {512, 1, 0, 0}};
  EXPECT_EQ(plan.operations, expected);
  EXPECT_EQ(plan.blocks, 2U);
  EXPECT_EQ(plan.streams, 3U);
  EXPECT_EQ(plan.allocations, 3U);
}

TEST(plan, numbers_threads_and_notes_the_line_of_each_operation) {
  trace_text trace;
  trace.allocate("0xa00", "256").row("allocate failure", "(nil)", "512", "0").free("0xa00", "256");
  trace.text += "7,00:00:00.000000,allocate,0xb00,512,0\n";
  replay::plan const plan = plan_of(trace);
  EXPECT_EQ(plan.threads, (std::vector<std::uint32_t>{0, 0, 1}));
  EXPECT_EQ(plan.lines, (std::vector<std::uint32_t>{2, 4, 5}));
}

TEST(plan, its_first_operations_are_those_of_the_shorter_trace) {
  trace_text trace;
  trace.allocate("0xa00", "256", "0x1").allocate("0xb00", "512", "0x2").free("0xa00", "256", "0x2");
  replay::plan const shorter = plan_of(trace);
  replay::plan const part =
      replay::first_operations(plan_of(trace.allocate("0xc00", "4096", "0x2").free("0xb00", "512", "0x2")), 3);
  EXPECT_EQ(part.operations, shorter.operations);
  EXPECT_EQ(part.live_at_end, shorter.live_at_end);
  EXPECT_EQ(part.microseconds, shorter.microseconds);
  EXPECT_EQ(part.threads, shorter.threads);
  EXPECT_EQ(part.lines, shorter.lines);
  EXPECT_EQ(part.allocations, shorter.allocations);
  EXPECT_EQ(part.frees_elsewhere, shorter.frees_elsewhere);
  EXPECT_EQ(part.peak_live_bytes, shorter.peak_live_bytes);
}

TEST(plan, computes_the_peak_of_live_bytes) {
  replay::plan const plan = plan_of(trace_text{}
                                        .allocate("0x1", "100")
                                        .allocate("0x2", "50")
                                        .free("0x1", "100")
                                        .allocate("0x3", "90")
                                        .free("0x2", "50")
                                        .free("0x3", "90"));
  EXPECT_EQ(plan.peak_live_bytes, 150U);
  EXPECT_TRUE(plan.live_at_end.empty());
}

TEST(plan, remaining_blocks_are_freed_on_the_stream_of_their_allocation) {
  replay::plan const plan = plan_of(trace_text{}
                                        .allocate("0x1", "1", "0x5")
                                        .allocate("0x2", "2", "0x6")
                                        .allocate("0x3", "3", "0x5")
                                        .free("0x2", "2", "0x5"));
  std::vector<replay::operation> const expected{{1, 0, 0, 0}, {3, 2, 0, 0}};
  EXPECT_EQ(plan.live_at_end, expected);
}

std::vector<std::uint64_t> microseconds_of(std::vector<std::string> const& times) {
  std::string text = std::string(gpumem::extend::trace_header) + "\n";
  for (std::size_t i = 0; i < times.size(); ++i) {
    text += "1," + times[i] + ",allocate,0x" + std::to_string(i + 1) + ",8,0\n";
  }
  return replay::make_plan(text, "t.csv").microseconds;
}

TEST(plan, keeps_the_recorded_time_of_each_operation) {
  using times = std::vector<std::uint64_t>;
  EXPECT_EQ(microseconds_of({"10:00:00.000500", "10:00:00.000500", "10:00:01.000000"}), (times{0, 0, 999'500}));
  EXPECT_EQ(microseconds_of({"00:00:01.000000", "00:00:00.999990", "00:00:00.999995", "00:00:01.000002"}),
            (times{0, 0, 0, 2}));
  EXPECT_EQ(microseconds_of({"23:59:59.999999", "00:00:00.000001", "00:00:00.000000", "23:59:59.999999"}),
            (times{0, 2, 2, 2}));
  EXPECT_EQ(microseconds_of({"23:59:59.999999", "24:00:00.000001"}), (times{0, 2}));
}

TEST(plan, plan_has_no_times_if_all_recorded_times_are_equal) {
  auto const one_moment = plan_of(trace_text{}.allocate("0x1", "1").free("0x1", "1"));
  EXPECT_EQ(one_moment.microseconds, (std::vector<std::uint64_t>{0, 0}));
  EXPECT_THROW(replay::require_times(one_moment, "t.csv"), gpumem::extend::trace_error);
  replay::plan two_moments = one_moment;
  two_moments.microseconds = {0, 1};
  EXPECT_NO_THROW(replay::require_times(two_moments, "t.csv"));
}

TEST(plan, pointer_can_be_allocated_again_after_its_free) {
  replay::plan const plan =
      plan_of(trace_text{}.allocate("0x1", "1").free("0x1", "1").allocate("0x1", "7").free("0x1", "7"));
  EXPECT_EQ(plan.operations.size(), 4U);
  EXPECT_EQ(plan.peak_live_bytes, 7U);
}

TEST(plan, operations_that_cannot_be_replayed_are_counted) {
  replay::plan const plan = plan_of(trace_text{}
                                        .row("allocate failure", "(nil)", "4096", "0x9")
                                        .allocate("(nil)", "0")
                                        .free("(nil)", "0")
                                        .allocate("0x1", "1"));
  EXPECT_EQ(plan.recorded_failures, 1U);
  EXPECT_EQ(plan.recorded_nulls, 2U);
  EXPECT_EQ(plan.operations.size(), 1U);
  EXPECT_EQ(plan.streams, 1U);
}

TEST(plan, contradictions_are_reported_with_their_line) {
  EXPECT_EQ(error_of(trace_text{}.allocate("0xa", "1").free("0xb", "1")),
            "t.csv:3: free of pointer 0xb, which was never allocated");
  EXPECT_EQ(error_of(trace_text{}.allocate("0xa", "1").free("0xa", "1").free("0xa", "1")),
            "t.csv:4: double free of pointer 0xa, freed in line 3");
  EXPECT_EQ(error_of(trace_text{}.allocate("0xa", "1").allocate("0xa", "1")),
            "t.csv:3: pointer 0xa is allocated while it is live since line 2");
  EXPECT_EQ(error_of(trace_text{}.allocate("0xa", "1").free("0xa", "2")),
            "t.csv:3: free of 2 bytes at 0xa, where line 2 allocated 1");
  EXPECT_EQ(error_of(trace_text{}.allocate("(nil)", "8")), "t.csv:2: an allocation of 8 bytes without a pointer");
  EXPECT_EQ(error_of(trace_text{}.free("(nil)", "8")), "t.csv:2: free of pointer 0x0, which was never allocated");
  EXPECT_EQ(error_of(trace_text{}.allocate("0x1", "18446744073709551615").allocate("0x2", "1")),
            "t.csv:3: more than 2^64 bytes would be live");
  EXPECT_EQ(error_of(trace_text{}), "t.csv:1: there is nothing to replay: no allocation and no free");
  EXPECT_EQ(error_of(trace_text{}.allocate("0xa", "1").row("release", "0xa", "1", "0")),
            "t.csv:3: bad action 'release'");
}

} // namespace
