// When the library thread passes over a pool. Time is that of the schedules: it passes only where a test lets it.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

import gpumem;
#include "../support/timed_item.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::detail::sync::now;
using gpumem::detail::sync::sleep_for;
using gpumem::detail::sync::time_point;
using duration = gpumem::detail::sync::duration;
namespace tuning = gpumem::detail::tuning;

class pass_timer_test : public gpumem_test::simulated_test {
protected:
  void TearDown() override {
    gpumem::detail::cancel_timer(pass);
    simulated_test::TearDown();
  }
  // Runs the pass that schedule() posts. Returns the time until it began.
  duration pause_before_pass() {
    auto const begin = now();
    passes.schedule();
    sleep_for(2 * tuning::max_pass_pause);
    EXPECT_TRUE(at) << "no pass";
    return at ? *std::exchange(at, std::nullopt) - begin : duration{0};
  }
  // Expects a pause of `steps` steps, and a little time for the calls.
  void expect_pause(unsigned steps) {
    auto const pause = pause_before_pass();
    EXPECT_GE(pause, steps * gpumem::detail::backoff::step) << steps;
    EXPECT_LT(pause, (steps + 1) * gpumem::detail::backoff::step) << steps;
  }

  gpumem::detail::admission requests;
  std::optional<time_point> at; // of the last pass
  int count = 0;                // of all passes
  std::function<void()> during_pass = [] {};
  test::timed_item pass{[this] {
    passes.begin_pass();
    at = now();
    ++count;
    during_pass();
    passes.end_pass();
  }};
  gpumem::detail::pass_timer passes{pass, requests};
};

TEST_F(pass_timer_test, pauses_grow_from_pass_to_pass_up_to_the_longest) {
  for (unsigned i = 1; i <= 5; ++i) expect_pause(i);
  for (unsigned i = 6; i < tuning::max_pass_pause / gpumem::detail::backoff::step; ++i) pause_before_pass();
  for (int i = 0; i < 3; ++i) expect_pause(tuning::max_pass_pause / gpumem::detail::backoff::step);
  passes.restart_idle();
  expect_pause(1);
}

TEST_F(pass_timer_test, requests_that_wait_have_pauses_of_their_own) {
  for (unsigned i = 1; i <= 3; ++i) expect_pause(i);
  requests.set_waiting(true);
  for (unsigned i = 1; i <= 3; ++i) expect_pause(i);
  passes.restart_idle();
  expect_pause(4);
  passes.restart_waiting();
  expect_pause(1);
  requests.set_waiting(false);
  expect_pause(1);
}

TEST_F(pass_timer_test, one_pass_is_posted_at_a_time) {
  for (int i = 0; i < 10; ++i) passes.schedule();
  passes.schedule_at(now());
  sleep_for(100ms);
  EXPECT_EQ(count, 1);
  expect_pause(2);
}

TEST_F(pass_timer_test, pass_at_a_given_time_leaves_time_for_other_work) {
  auto const begin = now();
  passes.schedule_at(begin + 10ms);
  sleep_for(20ms);
  ASSERT_TRUE(at);
  EXPECT_GE(*at, begin + 10ms);
  EXPECT_LT(*at, begin + 11ms);
  auto const next = now();
  passes.schedule_at(next - 5ms);
  sleep_for(20ms);
  EXPECT_EQ(count, 2);
  EXPECT_GE(*at, next + tuning::max_pass_pause);
}

TEST_F(pass_timer_test, pass_due_soon_replaces_a_late_one) {
  passes.schedule_at(now() + 100ms);
  expect_pause(1);
  sleep_for(200ms);
  EXPECT_EQ(count, 1) << "the late one is withdrawn";
}

TEST_F(pass_timer_test, earliest_of_late_passes_runs) {
  auto const begin = now();
  for (auto const deadline : {80ms, 20ms, 40ms}) passes.schedule_at(begin + deadline);
  sleep_for(200ms);
  EXPECT_EQ(count, 1);
  ASSERT_TRUE(at);
  EXPECT_GE(*at, begin + 20ms);
  EXPECT_LT(*at, begin + 21ms);
}

TEST_F(pass_timer_test, withdrawn_pass_does_not_run) {
  EXPECT_TRUE(passes.cancel()) << "nothing is posted";
  passes.schedule();
  EXPECT_TRUE(passes.cancel());
  sleep_for(10ms);
  EXPECT_EQ(count, 0);
  expect_pause(2);
}

TEST_F(pass_timer_test, running_pass_cannot_be_withdrawn) {
  bool withdrawn = true;
  during_pass = [&] { withdrawn = passes.cancel(); };
  pause_before_pass();
  EXPECT_FALSE(withdrawn);
  EXPECT_TRUE(passes.cancel()) << "it has ended";
}

TEST_F(pass_timer_test, running_pass_may_post_the_next_one) {
  during_pass = [&] {
    if (count < 5) passes.schedule();
  };
  passes.schedule();
  sleep_for(100ms);
  EXPECT_EQ(count, 5);
}

TEST_F(pass_timer_test, passes_for_memory_in_use_end_after_many_without_effect) {
  EXPECT_TRUE(passes.gives_up()) << "until a free leaves memory that is to go back";
  passes.restart_idle();
  for (unsigned i = 0; i < 1000; ++i) {
    EXPECT_FALSE(passes.gives_up());
    pause_before_pass();
    passes.count_idle(true);
  }
  EXPECT_TRUE(passes.gives_up());
  passes.restart_idle();
  EXPECT_FALSE(passes.gives_up());
  passes.count_idle(false);
  EXPECT_TRUE(passes.gives_up()) << "no event can show that the memory is free";
}

} // namespace
