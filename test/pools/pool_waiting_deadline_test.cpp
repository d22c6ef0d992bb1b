// Requests that wait for a pool's memory until a deadline. Time is that of the schedules: it passes only where a test
// lets it.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::detail::sync::now;
using gpumem::detail::sync::time_point;
using gpumem_test::MiB;

class pool_waiting_deadline : public gpumem_test::waiting_fixture {
protected:
  using pool_type = pool_resource<gpumem::cuda_resource>;

  pool_type make_pool() const { return pool_type{device, {.limit = 100 * MiB}}; }
  request until(pool_type& pool, time_point deadline, std::size_t bytes = 60 * MiB, std::stop_token token = {}) {
    return {*this, pool, b, bytes, std::move(token), true, {.deadline = deadline}};
  }
  void TearDown() override {
    gpumem::simulator::run_until_idle();
    pass(now() + 100ms); // the pool releases its memory
    waiting_fixture::TearDown();
  }
  // Returns after the library thread has handled everything that was due by `deadline`.
  static void pass(time_point deadline) { gpumem::detail::sync::sleep_for(deadline - now() + 1ms); }
};

TEST_F(pool_waiting_deadline, request_can_be_granted_before_its_deadline) {
  auto pool = make_pool();
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 20ms;
  auto first = until(pool, soon);
  block.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
  pass(soon);
  EXPECT_FALSE(executor.run_one()) << "the deadline came after the grant";
}

TEST_F(pool_waiting_deadline, deadline_ends_a_request_that_waits) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 2ms;
  auto first = until(pool, soon);
  EXPECT_FALSE(first.ended());
  pass(soon);
  EXPECT_FALSE(first.ended()) << "not through its executor";
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(first.ended(), outcome::deadline);
  EXPECT_TRUE(pool.acquire(b, 30 * MiB).try_now()) << "something still waits";
}

TEST_F(pool_waiting_deadline, passed_deadline_ends_a_request_before_it_waits) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto first = until(pool, now());
  EXPECT_EQ(first.ended(), outcome::deadline);
  EXPECT_FALSE(executor.posted());
  EXPECT_EQ(pool.acquire(b, 60 * MiB).wait_until(now()).error().reason, outcome::deadline);
}

TEST_F(pool_waiting_deadline, passed_deadline_does_not_refuse_free_memory) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto first = until(pool, now(), 30 * MiB);
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_TRUE(pool.acquire(b, MiB, {.deadline = now()}).wait());
  EXPECT_TRUE(pool.acquire(b, MiB, {.deadline = now()}).try_now());
  EXPECT_TRUE(pool.acquire(b, MiB).wait_until(now()));
}

TEST_F(pool_waiting_deadline, next_request_is_served_after_a_deadline) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 2ms;
  auto first = until(pool, soon);
  request second{*this, pool, b, 30 * MiB};
  pass(soon);
  run_all();
  EXPECT_EQ(first.ended(), outcome::deadline);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_deadline, deadline_ends_only_its_own_request) {
  auto pool = make_pool();
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto const base = now() + 1ms;
  auto late = until(pool, base + 1h), third = until(pool, base + 3us), first = until(pool, base + 1us),
       second = until(pool, base + 2us);
  pass(base);
  run_all();
  for (auto* const one : {&first, &second, &third}) EXPECT_EQ(one->ended(), outcome::deadline);
  EXPECT_FALSE(late.ended());
  block.reset();
  run_all();
  EXPECT_EQ(late.ended(), outcome::granted);
}

TEST_F(pool_waiting_deadline, deadline_during_a_turn_does_not_refuse_free_memory) {
  auto pool = make_pool();
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 2ms;
  auto first = until(pool, soon);
  block.reset();
  pass(soon);
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_waiting_deadline, deadline_ends_a_request_in_its_turn_if_memory_is_fragmented) {
  gpumem::pool_resource pool{device, {.initial_size = 4 * MiB, .limit = 4 * MiB, .pages = false}};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  auto const soon = now() + 2ms;
  auto first = until(pool, soon, 2 * MiB);
  for (auto const i : {0, 2}) blocks[i].reset();
  pass(soon);
  EXPECT_FALSE(first.ended());
  run_all();
  EXPECT_EQ(first.ended(), outcome::deadline);
}

TEST_F(pool_waiting_deadline, deadline_after_a_stop_changes_nothing) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  auto const soon = now() + 2ms;
  auto first = until(pool, soon, 60 * MiB, source.get_token());
  source.request_stop();
  pass(soon);
  run_all();
  EXPECT_EQ(first.ended(), outcome::stopped);
}

TEST_F(pool_waiting_deadline, stop_after_a_deadline_changes_nothing) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  auto const soon = now() + 2ms;
  auto first = until(pool, soon, 60 * MiB, source.get_token());
  pass(soon);
  source.request_stop();
  run_all();
  EXPECT_EQ(first.ended(), outcome::deadline);
}

TEST_F(pool_waiting_deadline, destroyed_request_forgets_its_deadline) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 2ms;
  { auto first = until(pool, soon); }
  pass(soon);
  EXPECT_FALSE(executor.run_one());
}

TEST_F(pool_waiting_deadline, closed_pool_forgets_deadlines) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 20ms;
  auto first = until(pool, soon);
  pool.close();
  pass(soon);
  run_all();
  EXPECT_EQ(first.ended(), outcome::closed);
}

TEST_F(pool_waiting_deadline, deadline_ends_a_blocking_wait) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const soon = now() + 2ms;
  try {
    (void)pool.acquire(b, 60 * MiB, {.deadline = soon}).wait();
    ADD_FAILURE() << "there was no memory";
  } catch (gpumem::acquire_error const& e) { EXPECT_EQ(e.reason(), outcome::deadline); }
  EXPECT_GE(now(), soon);
  EXPECT_TRUE(pool.acquire(b, 30 * MiB).try_now()) << "something still waits";
}

TEST_F(pool_waiting_deadline, earlier_of_two_deadlines_ends_a_wait) {
  auto pool = make_pool();
  auto const block = pool.acquire(a, 60 * MiB).wait();
  auto const in_an_hour = now() + 1h;
  EXPECT_EQ(pool.acquire(b, 60 * MiB, {.deadline = now() + 1ms}).wait_until(in_an_hour).error().reason,
            outcome::deadline);
  EXPECT_EQ(pool.acquire(b, 60 * MiB, {.deadline = in_an_hour}).wait_until(now() + 1ms).error().reason,
            outcome::deadline);
  EXPECT_LT(now(), in_an_hour);
}

} // namespace
