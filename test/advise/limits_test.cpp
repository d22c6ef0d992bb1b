// The search for a limit beside one that tries all, and the replay in which requests wait.
// SPDX-License-Identifier: Apache-2.0
#include "traces.hpp"
#include "../support/longest_wait.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

import replay;
import advise;

namespace {

using namespace advise_test;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

replay::loaded_trace loaded(std::string text) { return {"t", "t.csv", replay::make_plan(std::move(text), "t.csv")}; }

// Runs one job in a child process, as the adviser does: a process that has used a driver cannot fork such jobs.
advise::figures in_child(std::function<advise::figures()> const& job) {
  return advise::run_jobs({job}, [] {}).front();
}

advise::figures with_waits(replay::loaded_trace const& trace, std::uint64_t limit) {
  return in_child([&] { return advise::replay_with_waits(trace, limit); });
}

// Reads a byte from the pipe. Returns false if none comes in a long time.
bool hears(int pipe) {
  pollfd one{.fd = pipe, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 1000 * static_cast<int>(gpumem_test::longest_wait() / std::chrono::seconds{1})) == 1;
}

TEST(jobs, a_long_one_holds_up_no_other) {
  if (advise::processors() < 2) GTEST_SKIP() << "one job runs at a time";
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  std::vector<std::function<advise::figures()>> jobs(advise::processors(), [] { return advise::figures{}; });
  jobs.front() = [&] { return advise::figures{.completed = hears(ends[0])}; };
  jobs.emplace_back([&] { return advise::figures{.completed = write(ends[1], "j", 1) == 1}; });
  auto const all = advise::run_jobs(jobs, [] {});
  EXPECT_TRUE(all.front().completed); // until the last job has run, which begins after another one has ended
  EXPECT_TRUE(all.back().completed);
  close(ends[0]);
  close(ends[1]);
}

TEST(jobs, the_first_that_failed_is_named) {
  auto const fail = [](char const* text) { return [text]() -> advise::figures { throw std::runtime_error{text}; }; };
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  auto const late = [&]() -> advise::figures {
    if (advise::processors() > 1) hears(ends[0]);
    throw std::runtime_error{"the first job"};
  };
  try {
    advise::run_jobs(
        {late, fail("the second job"), [&]() -> advise::figures { return {.completed = write(ends[1], "j", 1) == 1}; }},
        [] {});
    FAIL() << "no job failed";
  } catch (std::runtime_error const& error) { EXPECT_STREQ(error.what(), "the first job"); }
  close(ends[0]);
  close(ends[1]);
}

TEST(limits, the_search_equals_one_that_tries_all_limits) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    replay::loaded_trace const trace = loaded(random_trace(seed, 300, 10 + 3 * seed, (2 + seed) * mib));
    std::optional<std::uint64_t> least;
    std::uint64_t failed = 0;
    for (std::uint64_t limit = advise::limit_step; !least; limit += advise::limit_step) {
      auto const tried = in_child([&] { return advise::replay_over(trace, "pool_effort_1", limit); });
      if (tried.completed)
        least = limit;
      else
        failed = tried.failed;
    }
    replay::progress none{1, nullptr};
    auto const found = advise::find_least_limit(trace, none);
    ASSERT_TRUE(found) << seed;
    EXPECT_EQ(found->bytes, *least) << seed;
    EXPECT_EQ(found->failed, failed) << seed;
  }
}

TEST(limits, a_large_trace_is_searched_in_two_parts) {
  trace_writer writer{20};
  writer.allocate(0x1000, 5'000 * mib);
  writer.allocate(0x2000, 1'001 * mib);
  writer.free(0x1000, 5'000 * mib);
  replay::loaded_trace const trace = loaded(writer.text());
  replay::progress none{1, nullptr};
  auto const found = advise::find_least_limit(trace, none);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 6'002 * mib);
  EXPECT_EQ(found->failed, 1U);
}

// Every second block of 1 MiB stays, so that pages are half free. A large step has two steps; the two traces need 100
// and 101 steps more than is live.
TEST(limits, the_second_part_of_the_search_goes_in_single_steps) {
  for (std::uint64_t const blocks : {400, 404}) {
    trace_writer writer{20};
    writer.allocate(0x1000, 3'000 * mib);
    for (std::uint64_t i = 0; i < blocks; ++i) writer.allocate(0x10000 + 0x1000 * i, mib);
    for (std::uint64_t i = 0; i < blocks; i += 2) writer.free(0x10000 + 0x1000 * i, mib);
    writer.allocate(0x2000, 1'000 * mib);
    replay::loaded_trace const trace = loaded(writer.text());
    replay::progress none{1, nullptr};
    auto const found = advise::find_least_limit(trace, none);
    ASSERT_TRUE(found);
    EXPECT_GT(found->bytes, trace.operations.peak_live_bytes + advise::limit_step);
    auto const completes = [&](std::uint64_t limit) {
      return in_child([&] { return advise::replay_over(trace, "pool_effort_1", limit); }).completed;
    };
    EXPECT_TRUE(completes(found->bytes));
    EXPECT_FALSE(completes(found->bytes - advise::limit_step));
  }
}

TEST(limits, requests_wait_for_the_frees_of_other_threads) {
  replay::loaded_trace const trace = loaded(crowded(4, 2));
  auto const all = with_waits(trace, 256 * mib);
  EXPECT_TRUE(all.completed);
  EXPECT_EQ(all.waits, 0U);
  auto const half = with_waits(trace, 128 * mib);
  EXPECT_TRUE(half.completed);
  EXPECT_GT(half.waits, 0U);
  EXPECT_LE(half.reserved, 128 * mib);
}

TEST(limits, threads_that_all_wait_end_the_replay) {
  trace_writer writer{20};
  for (unsigned thread = 1; thread <= 2; ++thread) writer.allocate(0x1000 * thread, 32 * mib, thread);
  for (unsigned thread = 1; thread <= 2; ++thread) writer.allocate(0x10000 * thread, 32 * mib, thread);
  for (unsigned thread = 1; thread <= 2; ++thread) {
    writer.free(0x1000 * thread, 32 * mib, thread);
    writer.free(0x10000 * thread, 32 * mib, thread);
  }
  replay::loaded_trace const trace = loaded(writer.text());
  auto const stuck = with_waits(trace, 64 * mib);
  EXPECT_FALSE(stuck.completed);
  EXPECT_EQ(stuck.failed, 2U);
  EXPECT_TRUE(with_waits(trace, 96 * mib).completed);
}

TEST(limits, a_free_waits_for_the_allocation_of_its_block_by_another_thread) {
  trace_writer writer{20};
  writer.allocate(0x1000, 64 * mib, 1);
  writer.allocate(0x2000, 64 * mib, 2); // waits for the free of the first
  writer.free(0x2000, 64 * mib, 3);
  writer.free(0x1000, 64 * mib, 1);
  replay::loaded_trace const trace = loaded(writer.text());
  auto const counted = with_waits(trace, 64 * mib);
  EXPECT_TRUE(counted.completed);
  EXPECT_EQ(counted.waits, 1U);
  writer.allocate(0x3000, 64 * mib, 4); // needs the free by the third thread
  EXPECT_TRUE(with_waits(loaded(writer.text()), 64 * mib).completed);
}

TEST(limits, calls_that_waited_serve_threads_that_wait_longer) {
  trace_writer writer{20};
  writer.allocate(0x1000, 32 * mib, 1);
  writer.allocate(0x2000, 32 * mib, 3);
  writer.allocate(0x3000, 64 * mib, 2); // waits for all memory
  writer.allocate(0x4000, 16 * mib, 3); // waits for the free by the first thread
  writer.free(0x4000, 16 * mib, 3);
  writer.free(0x2000, 32 * mib, 3);
  writer.free(0x1000, 32 * mib, 1);
  writer.free(0x3000, 64 * mib, 2);
  auto const counted = with_waits(loaded(writer.text()), 64 * mib);
  EXPECT_TRUE(counted.completed);
  EXPECT_EQ(counted.waits, 2U);
}

TEST(jobs, an_error_in_a_child_is_an_error_here) {
  auto const fails = [](auto job) -> std::string {
    try {
      in_child(job);
    } catch (std::runtime_error const& error) { return error.what(); }
    return "no error";
  };
  EXPECT_EQ(fails([]() -> advise::figures { throw std::runtime_error("no such thing"); }), "no such thing");
  EXPECT_EQ(fails([]() -> advise::figures { _exit(7); }), "a replay ended by status 7");
}

} // namespace
