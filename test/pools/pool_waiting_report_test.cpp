// The text in which a pool reports the work that holds its memory and the requests that wait. Time is that of the
// schedules, so that the text is always the same.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;

class pool_waiting_report : public gpumem_test::waiting_fixture {
protected:
  void TearDown() override {
    for (int i = 0; i < 3; ++i) { // the pools release their memory
      gpumem::simulator::run_until_idle();
      gpumem::detail::sync::sleep_for(1s);
    }
    waiting_fixture::TearDown();
  }
  // Returns `count` MiB as the report prints them.
  static std::string MiB_text(std::size_t count) { return std::to_string(count * MiB); }
};

TEST_F(pool_waiting_report, report_without_requests_is_one_line) {
  pool_resource pool{device, {.name = "idle"}};
  EXPECT_EQ(pool.describe_waiting(), "gpumem: idle: 0 requests wait; 0 bytes are live, 0 of them outside scopes");
  auto const block = pool.acquire(a, 1000).wait();
  EXPECT_EQ(pool.describe_waiting(), "gpumem: idle: 0 requests wait; 1000 bytes are live, 1000 of them outside scopes");
}

TEST_F(pool_waiting_report, report_lists_holders_by_size_and_requests_in_order) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool, "old"}, young{pool, "young"}, weights{pool, "weights"}, empty{pool, "empty"};
  auto const plain = pool.acquire(a, 10 * MiB).wait();
  auto const one = old.acquire(a, 20 * MiB).wait(), two = young.acquire(a, 25 * MiB).wait(),
             three = weights.acquire(a, 40 * MiB).wait();
  auto const mark = weights.waiting_elsewhere();
  request last{*this, pool, b, 30 * MiB, {.priority = -3}};
  gpumem::detail::sync::sleep_for(5ms);
  request first{*this, old, b, 20 * MiB};
  gpumem::detail::sync::sleep_for(2ms);
  EXPECT_EQ(pool.describe_waiting(), "gpumem: pool: 2 requests wait; " + MiB_text(95) + " bytes are live, " +
                                         MiB_text(10) +
                                         " of them outside scopes\n"
                                         "gpumem:   'weights' holds " +
                                         MiB_text(40) +
                                         " bytes; it waits for something else\n"
                                         "gpumem:   'young' holds " +
                                         MiB_text(25) +
                                         " bytes\n"
                                         "gpumem:   'old' holds " +
                                         MiB_text(20) +
                                         " bytes; it waits for memory\n"
                                         "gpumem:   a request for " +
                                         MiB_text(20) +
                                         " bytes waits for 2 ms; of 'old'; priority 0\n"
                                         "gpumem:   a request for " +
                                         MiB_text(30) + " bytes waits for 7 ms; of no scope; priority -3");
}

TEST_F(pool_waiting_report, report_marks_turns_and_work_that_can_be_rolled_back) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope work{pool, "work"};
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto const body = [&]() -> gpumem::task<> {
    auto const one = co_await work.acquire(a, 10 * MiB, {.resume_on = &executor});
    auto const two = co_await work.acquire(a, 40 * MiB, {.resume_on = &executor});
  };
  auto const running = test::start(gpumem::with_retry(work, body, [] {}, &executor));
  auto const before = pool.describe_waiting();
  EXPECT_NE(before.find("'work' holds " + MiB_text(10) + " bytes; it waits for memory; it can be rolled back"),
            std::string::npos)
      << before;
  block.reset();
  auto const after = pool.describe_waiting();
  EXPECT_TRUE(after.ends_with("of 'work'; priority 0; it has a turn")) << after;
  run_all();
}

TEST_F(pool_waiting_report, report_lists_requests_that_wait_at_a_limit) {
  pool_resource pool{device};
  pool_resource other_pool{device};
  scope work{gpumem::limiting_adaptor{pool, {.limit = 20 * MiB}}, "work"};
  scope other{gpumem::limiting_adaptor{other_pool, {.limit = 20 * MiB}}, "other"};
  auto const one = work.acquire(a, 15 * MiB).wait(), two = other.acquire(a, 15 * MiB).wait();
  request waits{*this, work, b, 10 * MiB}, elsewhere{*this, other, b, 10 * MiB};
  EXPECT_EQ(pool.describe_waiting(), "gpumem: pool: 0 requests wait; " + MiB_text(15) +
                                         " bytes are live, 0 of them outside scopes\n" + "gpumem:   'work' holds " +
                                         MiB_text(15) + " bytes; it waits for memory\n" + "gpumem:   a request for " +
                                         MiB_text(10) +
                                         " bytes waits for 0 ms; of 'work'; priority 0; in front of the pool");
}

TEST_F(pool_waiting_report, memory_of_nested_scopes_is_counted_once) {
  pool_resource pool{device};
  scope outer{pool, "outer"};
  scope inner{gpumem::limiting_adaptor{outer, {.limit = 10 * MiB}}, "inner"};
  auto const one = outer.acquire(a, 1000).wait(), two = inner.acquire(a, 500).wait();
  auto const plain = pool.acquire(a, 2000).wait();
  EXPECT_EQ(pool.describe_waiting(), "gpumem: pool: 0 requests wait; 3500 bytes are live, 2000 of them outside scopes\n"
                                     "gpumem:   'outer' holds 1500 bytes\n"
                                     "gpumem:   'inner' holds 500 bytes, which another scope counts as well");
}

TEST_F(pool_waiting_report, report_lists_scopes_while_they_hold_memory) {
  pool_resource pool{device, {.hardened = {.enabled = true}}};
  std::string const none = "gpumem: pool: 0 requests wait; 0 bytes are live, 0 of them outside scopes";
  std::optional<gpumem::allocation> kept;
  {
    scope first{pool, "first"}, third{pool, "third"};
    scope second{gpumem::any_pool{pool}, "second"};
    EXPECT_EQ(pool.describe_waiting(), none);
    { auto const mark = second.waiting_elsewhere(); }
    kept = second.acquire(a, 700).wait();
    gpumem::scope const other{gpumem::cuda_resource{}, "of no pool"};
  }
  EXPECT_EQ(pool.describe_waiting(), "gpumem: pool: 0 requests wait; 700 bytes are live, 0 of them outside scopes\n"
                                     "gpumem:   'second' holds 700 bytes")
      << "a block is left";
  kept.reset();
  EXPECT_EQ(pool.describe_waiting(), none);
}

TEST_F(pool_waiting_report, report_can_be_read_while_scopes_begin_and_end) {
  pool_resource pool{device};
  std::atomic<int> running{3};
  auto const body = [&] {
    for (int i = 0; i < 200; ++i) {
      scope work{pool, "work"};
      auto const block = work.acquire(a, 256).wait();
      auto const mark = work.waiting_elsewhere();
    }
    --running;
  };
  gpumem::detail::sync::thread one{body}, two{body}, three{body};
  while (running > 0) EXPECT_TRUE(pool.describe_waiting().starts_with("gpumem: pool: 0 requests wait; "));
  for (auto* const each : {&one, &two, &three}) each->join();
  EXPECT_EQ(pool.describe_waiting(), "gpumem: pool: 0 requests wait; 0 bytes are live, 0 of them outside scopes");
}

TEST_F(pool_waiting_report, error_of_a_stall_names_the_report) {
  gpumem::acquire_error const stalled{{gpumem::outcome::stalled, 0, 100}}, stopped{{gpumem::outcome::stopped, 0, 100}};
  EXPECT_STREQ(stalled.what(), "gpumem: a request for 100 B was not granted: stalled; describe_waiting() of the pool "
                               "says what holds its memory");
  EXPECT_STREQ(stopped.what(), "gpumem: a request for 100 B was not granted: stopped");
}

} // namespace
