// Units of work over one pool: which memory each holds, whose requests go first, and how deadlocks among them are
// resolved.
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
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

using pool_scopes = gpumem_test::waiting_fixture;

TEST_F(pool_scopes, scope_counts_the_bytes_that_it_holds) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope work{pool, "batch 7"};
  EXPECT_EQ(work.name(), "batch 7");
  auto first = work.acquire(a, 3 * MiB).wait();
  EXPECT_EQ(work.held(), 3 * MiB);
  auto* const p = work.allocate(b, 1000);
  EXPECT_EQ(work.held(), 3 * MiB + 1000);
  first.reset();
  work.deallocate(b, p, 1000);
  EXPECT_EQ(work.held(), 0u);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_scopes, older_scopes_are_served_first) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 100 * MiB).wait();
  scope old{pool}, young{pool}, urgent{pool, "urgent", {.priority = 1}};
  request first{*this, young, a, 60 * MiB}, plain{*this, pool, a, 60 * MiB}, second{*this, old, a, 60 * MiB},
      third{*this, urgent, b, 60 * MiB};
  block.reset();
  for (auto* next : {&third, &second, &first, &plain}) {
    EXPECT_FALSE(next->ended());
    run_all();
    ASSERT_EQ(next->ended(), outcome::granted);
    next->block().reset();
  }
}

TEST_F(pool_scopes, youngest_request_ends_if_all_holders_wait) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool}, young{pool};
  auto held_by_old = old.acquire(a, 50 * MiB).wait(), held_by_young = young.acquire(b, 50 * MiB).wait();
  request first{*this, old, a, 20 * MiB};
  EXPECT_FALSE(executor.run_one());
  request second{*this, young, b, 20 * MiB};
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::stalled);
  EXPECT_FALSE(first.ended());
  held_by_young.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_scopes, request_for_memory_that_its_own_scope_holds_ends) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope only{pool};
  auto held = only.acquire(a, 60 * MiB).wait();
  request asks{*this, only, a, 60 * MiB};
  run_until([&] { return asks.ended().has_value(); });
  EXPECT_EQ(asks.ended(), outcome::stalled);
}

TEST_F(pool_scopes, request_waits_while_another_scope_can_free_memory) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool}, young{pool};
  auto held_by_old = old.acquire(a, 40 * MiB).wait(), held_by_young = young.acquire(b, 40 * MiB).wait();
  auto other = pool.acquire(a, 20 * MiB).wait();
  request first{*this, old, a, 20 * MiB}, second{*this, young, b, 20 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(second.ended()) << "memory allocated outside a scope may be freed";
  other.reset();
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_FALSE(second.ended()) << "the first goes on";
  held_by_old.reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_scopes, request_waits_for_freed_memory_to_complete) {
  pool_resource pool{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed}};
  scope old{pool}, young{pool};
  auto held_by_old = old.acquire(a, 30 * MiB).wait(), held_by_young = young.acquire(b, 30 * MiB).wait();
  auto used = young.acquire(b, 40 * MiB).wait();
  use(used);
  free_used(used);
  request first{*this, old, a, 40 * MiB}, second{*this, young, b, 50 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(second.ended());
  simulator::run_until_idle();
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  let_the_library_thread_poll();
  EXPECT_FALSE(second.ended()) << "the first goes on";
  first.block().reset();
  held_by_old.reset();
  run_until([&] {
    simulator::run_until_idle();
    return second.ended().has_value();
  });
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_scopes, stall_is_found_despite_cached_blocks_of_other_sizes) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  pool.deallocate(a, pool.allocate(a, 1000), 1000);
  pool.deallocate(a, pool.allocate(a, 990), 990); // takes the block from the thread cache
  scope only{pool};
  auto held = only.acquire(a, 60 * MiB).wait();
  request asks{*this, only, a, 60 * MiB};
  run_until([&] { return asks.ended().has_value(); });
  EXPECT_EQ(asks.ended(), outcome::stalled);
}

TEST_F(pool_scopes, stall_is_found_after_the_last_free_outside_scopes) {
  pool_resource pool{device, {.limit = 100 * MiB, .effort = 1}}; // with another effort, passes look at surplus pages
  scope work{pool};
  auto other = pool.acquire(b, 20 * MiB).wait();
  auto const held = work.acquire(a, 60 * MiB).wait();
  request asks{*this, work, a, 60 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(asks.ended());
  other.reset();
  run_until([&] { return asks.ended().has_value(); });
  EXPECT_EQ(asks.ended(), outcome::stalled);
}

TEST_F(pool_scopes, scope_marked_as_waiting_elsewhere_counts_as_waiting) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope weights{pool, "weights"}, work{pool, "work"};
  auto kept = weights.acquire(a, 60 * MiB).wait(), held = work.acquire(b, 20 * MiB).wait();
  {
    request asks{*this, work, b, 30 * MiB};
    let_the_library_thread_poll();
    EXPECT_FALSE(asks.ended());
    auto const mark = weights.waiting_elsewhere();
    run_until([&] { return asks.ended().has_value(); });
    EXPECT_EQ(asks.ended(), outcome::stalled);
  }
  held.reset();
  auto const mark = weights.waiting_elsewhere();
  auto const again = weights.waiting_elsewhere();
  request plain{*this, pool, b, 60 * MiB};
  run_until([&] { return plain.ended().has_value(); });
  EXPECT_EQ(plain.ended(), outcome::stalled) << "only the weights hold memory";
}

// Holds the first part until it has both.
gpumem::task<int> two_parts(auto& work, gpumem::stream& on, std::size_t each, gpumem::executor& where, int& began) {
  ++began;
  auto const one = co_await work.acquire(on, each, {.resume_on = &where});
  co_await test::hop{where};
  auto const other = co_await work.acquire(on, each, {.resume_on = &where});
  co_return began;
}

TEST_F(pool_scopes, younger_work_is_preempted_and_tried_again) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool, "old"}, young{pool, "young"};
  int old_began = 0, young_began = 0, rolled_back = 0;
  auto const run = [&](auto work, gpumem::stream& on, int& began) {
    return gpumem::with_retry(
        work, [&, work]() mutable { return two_parts(work, on, 45 * MiB, executor, began); }, [&] { ++rolled_back; },
        &executor);
  };
  int ended = 0;
  auto const wait_for = [&](gpumem::task<int> body) -> gpumem::task<> { ended += co_await std::move(body); };
  auto first = test::start(wait_for(run(old, a, old_began))),
       second = test::start(wait_for(run(young, b, young_began)));
  run_until([&] { return ended == 3; });
  EXPECT_EQ(old_began, 1);
  EXPECT_EQ(young_began, 2);
  EXPECT_EQ(rolled_back, 1);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_scopes, older_request_preempts_younger_work_that_waits) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool, "old"}, young{pool, "young"};
  auto const other = pool.acquire(a, 10 * MiB).wait(); // outside a scope: it may be freed at any time
  int began = 0, rolled_back = 0, ended = 0;
  auto held = old.acquire(a, 20 * MiB).wait();
  auto const wait_for = [&](gpumem::task<int> body) -> gpumem::task<> {
    co_await std::move(body);
    ++ended;
  };
  auto second = test::start(wait_for(gpumem::with_retry(
      young, [&] { return two_parts(young, b, 40 * MiB, executor, began); }, [&] { ++rolled_back; }, &executor)));
  run_all();
  EXPECT_EQ(young.held(), 40 * MiB);
  request first{*this, old, a, 40 * MiB};
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(rolled_back, 1);
  EXPECT_EQ(young.held(), 0u);
  first.block().reset();
  EXPECT_EQ(began, 1) << "there is no room for both of its parts yet";
  held.reset();
  run_until([&] {
    simulator::run_until_idle();
    return ended == 1;
  });
  EXPECT_EQ(began, 2);
}

TEST_F(pool_scopes, request_gets_memory_that_a_pressure_callback_frees) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto cached = pool.acquire(a, 80 * MiB).wait();
  std::size_t asked = 0;
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t wanted) {
    ++calls;
    asked = wanted;
    cached.reset();
    return 80 * MiB;
  });
  scope work{pool};
  request first{*this, work, b, 60 * MiB};
  EXPECT_FALSE(first.ended());
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(asked, 40 * MiB);
  EXPECT_EQ(calls, 1);
}

TEST_F(pool_scopes, preemption_begins_only_after_pressure_callbacks) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  scope old{pool}, young{pool}, caches{pool};
  auto one = old.acquire(a, 40 * MiB).wait(), two = young.acquire(b, 40 * MiB).wait();
  auto cached = caches.acquire(a, 20 * MiB).wait();
  auto const mark = caches.waiting_elsewhere();
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t) -> std::size_t {
    if (++calls == 1) return 20 * MiB; // a false claim
    if (calls > 2) return 0;
    cached.reset();
    return 20 * MiB;
  });
  request first{*this, old, a, 30 * MiB};
  run_until([&] { return calls == 1; });
  let_the_library_thread_poll();
  EXPECT_FALSE(executor.run_one()) << "a callback's claim counts only if memory was freed";
  request second{*this, young, b, 30 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(second.ended()) << "a callback that has not run may still free memory";
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(second.ended(), outcome::stalled);
  two.reset();
  run_all();
  EXPECT_EQ(first.ended(), outcome::granted);
}

TEST_F(pool_scopes, pressure_callback_is_not_called_after_its_destruction) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 80 * MiB).wait();
  int calls = 0;
  {
    auto spiller = pool.on_pressure(executor, [&](std::size_t) { return ++calls, 0; });
    auto other = pool.on_pressure(gpumem::default_executor(), [&](std::size_t) -> std::size_t { throw 1; });
    request first{*this, pool, b, 60 * MiB};
    let_the_library_thread_poll();
    auto moved = std::move(spiller);
  }
  run_all();
  request second{*this, pool, b, 60 * MiB};
  let_the_library_thread_poll();
  EXPECT_FALSE(executor.run_one());
  EXPECT_EQ(calls, 0);
  block.reset();
  run_all();
}

TEST_F(pool_scopes, pressure_callback_can_destroy_itself_and_the_pool) {
  gpumem::pressure_callback spiller;
  void* cached = nullptr;
  std::optional<request> first;
  int calls = 0;
  {
    pool_resource pool{device, {.limit = 100 * MiB}};
    cached = pool.allocate_sync(80 * MiB);
    auto* const state = static_cast<gpumem::detail::pool_state*>(pool.services().state);
    spiller = pool.on_pressure(executor, [&, state](std::size_t wanted) {
      ++calls;
      first.reset();
      state->deallocate(gpumem::extend::stream_key::host(), std::exchange(cached, nullptr)); // no work on it is pending
      spiller = {};                                                                          // drops the last handle
      return wanted;
    });
    first.emplace(*this, pool, b, 60 * MiB);
  }
  run_until([&] { return calls == 1; });
  EXPECT_FALSE(cached);
}

} // namespace
