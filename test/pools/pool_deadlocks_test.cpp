// Deadlocks among nested scopes, in front of a pool, across several resources, and of work that waits twice at once.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::limiting_adaptor;
using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;

class pool_deadlocks : public gpumem_test::waiting_fixture {
protected:
  // Runs the device and posted items until `done`.
  template <class Done> void run_all_until(Done done) {
    run_until([&] {
      gpumem::simulator::run_until_idle();
      return done();
    });
  }
  // Frees a block, for which the request has waited.
  void expect_granted_after(gpumem::allocation& block, request& waits) {
    block.reset();
    run_all_until([&] { return waits.ended().has_value(); });
    EXPECT_EQ(waits.ended(), outcome::granted);
  }
  // The second of two requests that wait for each other ends, and the first gets the block of the second one's work.
  void expect_second_ends(request& first, request& second, gpumem::allocation& block) {
    run_all_until([&] { return second.ended().has_value(); });
    EXPECT_EQ(second.ended(), outcome::stalled);
    EXPECT_FALSE(first.ended());
    expect_granted_after(block, first);
  }
  // Returns bins for blocks of at most 20 MiB, of at most 64 MiB, and of more.
  template <class Pool> auto two_bins(Pool small, Pool large) {
    gpumem::binning_resource bins{gpumem::cuda_resource{device}};
    bins.add_bin(20 * MiB, small);
    bins.add_bin(64 * MiB, large);
    return bins;
  }
  // The older scope waits for memory that the younger holds, and the other way round: the younger one's request ends.
  template <class Old, class Young>
  void expect_youngest_ends(Old old, Young young, std::size_t old_has, std::size_t young_has, std::size_t old_wants,
                            std::size_t young_wants) {
    auto one = old.acquire(a, old_has).wait(), two = young.acquire(b, young_has).wait();
    request first{*this, old, a, old_wants};
    let_the_library_thread_poll();
    run_all();
    EXPECT_FALSE(first.ended()) << "the younger work still runs";
    request second{*this, young, b, young_wants};
    expect_second_ends(first, second, two);
  }
};

TEST_F(pool_deadlocks, request_ends_if_an_outer_and_a_nested_scope_wait) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope outer{pool};
  scope nested{outer, "nested"};
  expect_youngest_ends(outer, nested, 50 * MiB, 50 * MiB, 40 * MiB, 40 * MiB);
}

TEST_F(pool_deadlocks, mark_of_an_outer_scope_leaves_its_nested_scopes_running) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope outer{pool};
  scope one{outer, "one"}, two{outer, "two"};
  auto const mark = outer.waiting_elsewhere();
  expect_youngest_ends(one, two, 50 * MiB, 50 * MiB, 40 * MiB, 40 * MiB);
}

TEST_F(pool_deadlocks, older_work_preempts_a_step_with_a_scope_of_its_own) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto other = pool.acquire(a, 10 * MiB).wait(); // outside a scope: it may be freed at any time
  scope old{pool}, young{pool};
  int rolled_back = 0;
  auto const body = [&]() -> gpumem::task<> {
    scope step{young, "step"};
    auto const one = co_await step.acquire(b, 40 * MiB, {.resume_on = &executor});
    auto const two = co_await step.acquire(b, 60 * MiB, {.resume_on = &executor});
  };
  auto running = test::start(gpumem::with_retry(young, body, [&] { ++rolled_back; }, &executor));
  {
    scope step_of_old{old, "step"}; // made last, but a part of the oldest work
    request first{*this, step_of_old, a, 60 * MiB};
    run_all_until([&] { return first.ended().has_value(); });
    EXPECT_EQ(first.ended(), outcome::granted);
  }
  EXPECT_EQ(rolled_back, 1);
  other.reset();
  run_all_until([&] { return running.done(); });
}

// While memory goes back to the upstream, a request may go on without a free. So the deadlock is found afterwards.
TEST_F(pool_deadlocks, request_ends_after_a_trim_that_did_not_help) {
  std::atomic<bool> gives_back{false}, may_end{false};
  gpumem::cuda_resource card{device};
  auto const allocate = [&](gpumem::stream_ref, std::size_t bytes, std::size_t) { return card.allocate_sync(bytes); };
  auto const free = [&](gpumem::stream_ref, void* pointer, std::size_t bytes, std::size_t) {
    gives_back = true;
    while (!may_end) std::this_thread::yield();
    card.deallocate_sync(pointer, bytes);
  };
  pool_resource pool{gpumem::callback_resource{device, allocate, free}, {.limit = 90 * MiB, .chunk_size = 10 * MiB}};
  scope old{pool}, young{pool};
  auto unused = pool.acquire(a, 10 * MiB).wait();
  auto one = old.acquire(a, 40 * MiB).wait(), two = young.acquire(b, 40 * MiB).wait();
  unused.reset();
  a.synchronize();
  std::thread other{[&] { pool.trim(); }};
  run_until([&] { return gives_back.load(); });
  request first{*this, old, a, 20 * MiB}, second{*this, young, b, 20 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(second.ended());
  may_end = true;
  other.join();
  run_all_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::stalled);
  two.reset();
  run_all_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_deadlocks, request_ends_if_scopes_fill_a_limit) {
  pool_resource pool{device};
  auto const tenant = pool.acquire(a, 10 * MiB).wait(); // memory that did not pass the limit
  limiting_adaptor share{pool, {.limit = 100 * MiB}};
  expect_youngest_ends(scope{share}, scope{share}, 50 * MiB, 50 * MiB, 40 * MiB, 40 * MiB);
}

TEST_F(pool_deadlocks, request_ends_if_one_scope_waits_at_the_limit_and_one_in_the_pool) {
  pool_resource pool{device, {.limit = 60 * MiB}};
  limiting_adaptor share{pool, {.limit = 100 * MiB}};
  scope old{share}, young{share};
  auto held = young.acquire(b, 60 * MiB).wait();
  request first{*this, old, a, 40 * MiB}; // has passed the limit
  request second{*this, young, b, 20 * MiB};
  expect_second_ends(first, second, held);
}

TEST_F(pool_deadlocks, request_ends_if_scopes_wait_for_each_others_bins) {
  pool_resource small{device, {.limit = 20 * MiB}}, large{device, {.limit = 64 * MiB}};
  auto bins = two_bins(small, large);
  auto const beside = bins.acquire(a, 100 * MiB).wait(); // of a third bin, outside scopes
  expect_youngest_ends(scope{bins}, scope{bins}, 64 * MiB, 20 * MiB, 20 * MiB, 64 * MiB);
}

TEST_F(pool_deadlocks, older_work_that_waits_for_another_bin_does_not_give_way) {
  pool_resource small{device, {.limit = 20 * MiB}}, large{device, {.limit = 64 * MiB}};
  auto const bins = two_bins(small, large);
  auto running = small.acquire(b, 20 * MiB).wait();
  scope old{bins}, young{bins};
  int rolled_back = 0;
  auto const body = [&]() -> gpumem::task<> {
    auto const one = co_await old.acquire(a, 64 * MiB, {.resume_on = &executor});
    auto const two = co_await old.acquire(a, 20 * MiB, {.resume_on = &executor});
  };
  auto work = test::start(gpumem::with_retry(old, body, [&] { ++rolled_back; }, &executor));
  request second{*this, young, b, 64 * MiB};
  let_the_library_thread_poll();
  run_all();
  EXPECT_EQ(rolled_back, 0);
  EXPECT_FALSE(second.ended());
  running.reset();
  run_all_until([&] { return work.done() && second.ended(); });
  EXPECT_EQ(second.ended(), outcome::granted);
  EXPECT_EQ(rolled_back, 0);
}

TEST_F(pool_deadlocks, request_waits_while_a_holder_waits_where_memory_may_be_freed) {
  pool_resource small{device, {.limit = 64 * MiB}}, large{device, {.limit = 64 * MiB}};
  auto const bins = two_bins(small, large);
  scope work{bins}, other{bins};
  auto running = large.acquire(b, 64 * MiB).wait();
  auto held = work.acquire(a, 20 * MiB).wait(), more = work.acquire(a, 20 * MiB).wait(),
       rest = work.acquire(a, 20 * MiB).wait();
  request first{*this, work, a, 64 * MiB}, second{*this, other, b, 20 * MiB};
  let_the_library_thread_poll();
  run_all();
  EXPECT_FALSE(first.ended());
  EXPECT_FALSE(second.ended()) << "the first waits for memory of running work";
  expect_granted_after(running, first);
}

TEST_F(pool_deadlocks, request_ends_if_scopes_hold_both_resources_of_a_fallback) {
  pool_resource main{device, {.limit = 60 * MiB}}, spare{device, {.limit = 60 * MiB}};
  gpumem::fallback_adaptor both{main, spare};
  scope old{both}, young{both};
  auto one = old.acquire(a, 30 * MiB).wait(), two = young.acquire(b, 30 * MiB).wait(); // of the first resource
  auto const rest = old.acquire(a, 60 * MiB).wait();                                   // of the second
  request first{*this, old, a, 20 * MiB}, second{*this, young, b, 20 * MiB};
  expect_second_ends(first, second, two);
}

TEST_F(pool_deadlocks, all_requests_of_preempted_work_end_and_later_deadlocks_are_found) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  for (int round = 0; round < 2; ++round) {
    auto const other = pool.acquire(a, 10 * MiB).wait();
    scope old{pool}, young{pool};
    auto held = old.acquire(a, 40 * MiB).wait();
    int rolled_back = 0;
    auto const get = [&]() -> gpumem::task<> {
      auto const block = co_await young.acquire(b, 45 * MiB, {.resume_on = &executor});
    };
    auto const body = [&]() -> gpumem::task<> {
      auto const one = co_await young.acquire(b, 40 * MiB, {.resume_on = &executor});
      co_await gpumem::when_all(get(), get());
    };
    auto running = test::start(gpumem::with_retry(young, body, [&] { ++rolled_back; }, &executor));
    request first{*this, old, a, 45 * MiB};
    run_all_until([&] { return first.ended().has_value(); });
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_EQ(rolled_back, 1);
    first.block().reset();
    held.reset();
    run_all_until([&] { return running.done(); });
  }
}

} // namespace
