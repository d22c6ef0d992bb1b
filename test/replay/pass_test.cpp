// A pass over a test resource: which calls it makes, in which order, on which streams.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
import replay;

namespace {

// Records its calls, and grants what fits its capacity.
struct noting_resource {
  std::size_t capacity = 1000;
  gpumem::outcome refusal = gpumem::outcome::exhausted;
  std::size_t live = 0;
  std::uintptr_t next = 0x1000;
  std::vector<std::string> calls;

  static std::string name(gpumem::stream_ref stream) {
    return std::to_string(reinterpret_cast<std::uintptr_t>(stream.get()));
  }
  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::stream_ref stream, std::size_t bytes) noexcept {
    calls.push_back("allocate " + std::to_string(bytes) + " on " + name(stream));
    if (live + bytes > capacity) {
      return gpumem::unexpected<gpumem::failure>{gpumem::failure{.reason = refusal, .code = {}, .requested = bytes}};
    }
    live += bytes;
    next += 0x1000;
    return reinterpret_cast<void*>(next);
  }
  void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes) noexcept {
    live -= bytes;
    calls.push_back("free " + std::to_string(reinterpret_cast<std::uintptr_t>(pointer)) + " of " +
                    std::to_string(bytes) + " on " + name(stream));
  }
};

struct a_pass {
  replay::plan plan;
  noting_resource resource;
  std::vector<gpumem::stream_ref> streams{gpumem::stream_ref{reinterpret_cast<CUstream>(10)},
                                          gpumem::stream_ref{reinterpret_cast<CUstream>(11)}};

  replay::pass_state run() {
    replay::pass_state state{plan};
    replay::no_timer watch;
    replay::run_pass(resource, plan, streams, state, watch);
    return state;
  }
};

replay::plan two_blocks() {
  replay::plan plan;
  plan.operations = {{100, 0, 0, 1}, {200, 1, 1, 1}, {100, 0, 1, 0}, {300, 0, 0, 1}};
  plan.live_at_end = {{300, 0, 0, 0}, {200, 1, 1, 0}};
  plan.blocks = 2;
  plan.streams = 2;
  plan.allocations = 3;
  return plan;
}

TEST(pass, makes_the_calls_of_the_plan_in_order) {
  a_pass pass{.plan = two_blocks(), .resource = {}};
  auto state = pass.run();
  replay::free_live_at_end(pass.resource, pass.plan, pass.streams, state);
  EXPECT_EQ(pass.resource.calls,
            (std::vector<std::string>{"allocate 100 on 10", "allocate 200 on 11", "free 8192 of 100 on 11",
                                      "allocate 300 on 10", "free 16384 of 300 on 10", "free 12288 of 200 on 11"}));
  EXPECT_EQ(pass.resource.live, 0U);
  EXPECT_EQ(state.failures, 0U);
  EXPECT_EQ(state.blocks, (std::vector<void*>{nullptr, nullptr}));
}

TEST(pass, counts_failures_and_frees_nothing_for_them) {
  a_pass pass{.plan = two_blocks(), .resource = {.capacity = 250, .calls = {}}};
  auto state = pass.run();
  replay::free_live_at_end(pass.resource, pass.plan, pass.streams, state);
  EXPECT_EQ(state.failures, 2U); // 200 beside 100, and 300 at any time
  EXPECT_FALSE(state.fatal);
  EXPECT_EQ(pass.resource.live, 0U);
}

TEST(pass, failure_other_than_out_of_memory_is_reported) {
  a_pass pass{.plan = two_blocks(), .resource = {.capacity = 0, .refusal = gpumem::outcome::device_lost, .calls = {}}};
  auto const state = pass.run();
  ASSERT_TRUE(state.fatal);
  EXPECT_EQ(state.fatal->reason, gpumem::outcome::device_lost);
  EXPECT_EQ(state.fatal->requested, 100U);
}

TEST(call_timer, each_call_is_timed_once) {
  a_pass pass{.plan = two_blocks(), .resource = {}};
  replay::pass_state state{pass.plan};
  replay::call_timer watch{pass.plan.operations.size()};
  replay::run_pass(pass.resource, pass.plan, pass.streams, state, watch);
  EXPECT_EQ(watch.nanoseconds().size(), 4U);
}

// A clock that advances by one microsecond at each reading.
struct counted_clock {
  static inline std::int64_t nanoseconds = 0;
  static std::int64_t now() noexcept { return nanoseconds += 1000; }
};

// Records the times of its calls in microseconds; each allocation takes `microseconds`.
struct slow_resource {
  std::int64_t microseconds = 0;
  std::vector<std::int64_t> calls;

  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::stream_ref, std::size_t) noexcept {
    calls.push_back(counted_clock::nanoseconds / 1000);
    counted_clock::nanoseconds += microseconds * 1000;
    return static_cast<void*>(&calls);
  }
  void deallocate(gpumem::stream_ref, void*, std::size_t) noexcept {
    calls.push_back(counted_clock::nanoseconds / 1000);
  }
};

struct a_paced_pass {
  replay::plan plan = two_blocks();
  slow_resource resource;
  std::vector<double> took;

  // Returns the times of the calls since the pass began, whatever the clock showed before.
  std::vector<std::int64_t> run() {
    plan.microseconds = {0, 50, 60, 200};
    replay::pass_state state{plan};
    std::vector<gpumem::stream_ref> const streams(2, gpumem::stream_ref{CUstream{}});
    replay::pace_timer<counted_clock> watch{plan};
    for (int pass = 0; pass < 2; ++pass) {
      resource.calls.clear();
      watch.begin();
      std::int64_t const origin = counted_clock::nanoseconds / 1000;
      replay::run_pass(resource, plan, streams, state, watch);
      for (auto& each : resource.calls) each -= origin;
      counted_clock::nanoseconds += 1'000'000;
    }
    took.assign(watch.nanoseconds().begin(), watch.nanoseconds().end());
    return resource.calls;
  }
};

TEST(pace_timer, early_calls_wait_for_their_time) {
  a_paced_pass pass;
  EXPECT_EQ(pass.run(), (std::vector<std::int64_t>{1, 50, 60, 200}));
  EXPECT_EQ(pass.took, (std::vector<double>{1000, 1000, 1000, 1000}));
}

TEST(pace_timer, late_calls_run_at_once_and_later_calls_in_time) {
  a_paced_pass pass{.resource = {.microseconds = 100, .calls = {}}, .took = {}};
  // each reading of the clock takes a microsecond
  EXPECT_EQ(pass.run(), (std::vector<std::int64_t>{1, 103, 205, 207}));
  EXPECT_EQ(pass.took, (std::vector<double>{101'000, 101'000, 1000, 101'000}));
}

// Two blocks, one after the other.
replay::plan block_after_block(std::uint64_t first, std::uint64_t second) {
  replay::plan plan;
  plan.operations = {{first, 0, 0, 1}, {first, 0, 0, 0}, {second, 0, 0, 1}, {second, 0, 0, 0}};
  plan.blocks = 1;
  return plan;
}

std::uint64_t live_at_once(replay::plan const& plan, std::size_t stride, replay::pass_notes a, replay::pass_notes b) {
  return replay::live_at_once(plan, stride, std::vector{std::move(a), std::move(b)});
}

TEST(live_at_once, only_blocks_that_are_live_together_add_up) {
  auto const plan = block_after_block(100, 300);
  EXPECT_EQ(live_at_once(plan, 1, {{1, 2, 3, 4}, {}}, {{5, 6, 7, 8}, {}}), 300U);
  EXPECT_EQ(live_at_once(plan, 1, {{1, 2, 3, 5}, {}}, {{4, 6, 7, 8}, {}}), 400U);
  EXPECT_EQ(live_at_once(plan, 1, {{1, 2, 3, 7}, {}}, {{4, 5, 6, 8}, {}}), 600U);
}

TEST(live_at_once, failed_allocation_and_its_free_do_not_count) {
  auto const plan = block_after_block(100, 300);
  EXPECT_EQ(live_at_once(plan, 1, {{1, 2, 3, 0}, {2}}, {{4, 5, 6, 7}, {}}), 300U);
  EXPECT_EQ(live_at_once(plan, 1, {{1, 2, 3, 0}, {2}}, {{1, 2, 3, 0}, {2}}), 200U);
}

TEST(live_at_once, operations_between_two_times_are_spread_evenly) {
  auto const plan = block_after_block(300, 100);
  // the first blocks are freed at 20 and 25
  EXPECT_EQ(live_at_once(plan, 2, {{10, 30, 0}, {}}, {{15, 35, 0}, {}}), 600U);
  EXPECT_EQ(live_at_once(plan, 2, {{10, 30, 0}, {}}, {{22, 42, 0}, {}}), 400U);
}

TEST(live_counter, counts_each_pass_with_and_without_sparse_times) {
  for (bool const sparse : {false, true}) {
    a_pass pass{.plan = two_blocks(), .resource = {.capacity = 900, .calls = {}}};
    replay::live_counter live{pass.plan, 2, sparse};
    replay::no_timer watch;
    for (int i = 0; i < 2; ++i) {
      std::vector<replay::pass_state> states(2, replay::pass_state{pass.plan});
      struct member {
        unsigned number;
        std::span<gpumem::stream_ref const> streams;
        replay::pass_state& state;
      };
      for (unsigned number : {0U, 1U}) { live.run(pass.resource, member{number, pass.streams, states[number]}, watch); }
      live.end_pass();
      for (auto& each : states) replay::free_live_at_end(pass.resource, pass.plan, pass.streams, each);
      EXPECT_EQ(live.peak(), 800U) << "the second 300 bytes find no room";
    }
  }
}

TEST(paced_times, times_exclude_the_cost_of_the_clock) {
  std::vector<replay::pass_cost> const passes{{.nanoseconds = 1000, .driver_calls = 0},
                                              {.nanoseconds = 2000, .driver_calls = 0},
                                              {.nanoseconds = 4000, .driver_calls = 0}};
  auto const times = replay::paced_times_of(passes, {{310, 110}, {110, 110}, {50, 10}}, 10);
  EXPECT_EQ(times.cold, 200);
  EXPECT_EQ(times.warm, 60); // median of 100 and 20
  ASSERT_TRUE(times.pace);
  EXPECT_EQ(times.pace->share_cold, .4);
  EXPECT_EQ(times.pace->share_warm, .055); // median of .1 and .01
  EXPECT_EQ(times.pace->seconds_warm, 3e-6);
  EXPECT_EQ(times.call.max, 110);
  EXPECT_EQ(times.call.clock, 10);
}

TEST(kernel_interval, kernel_is_due_after_every_nth_allocation) {
  replay::operation const allocation{1, 0, 0, 1};
  replay::operation const free{1, 0, 0, 0};
  replay::kernel_interval rhythm{2};
  std::vector<bool> beats;
  for (auto const& next : {allocation, free, allocation, allocation, free, free, allocation, allocation}) {
    beats.push_back(rhythm.due(next));
  }
  EXPECT_EQ(beats, (std::vector<bool>{false, false, true, false, false, false, true, false}));
  replay::plan plan;
  plan.allocations = 5;
  EXPECT_EQ(replay::launches_of(plan, 2), 2U);
}

} // namespace
