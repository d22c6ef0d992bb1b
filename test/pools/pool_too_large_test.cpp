// Requests that no state of a pool can serve end at once, and the requests behind them go on.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
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

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;

class pool_too_large : public gpumem_test::waiting_fixture {
protected:
  // Either the empty resource serves the request, or it fails as too_large while another block is live, and ends no
  // other request.
  template <class Resource> void expect_served_or_too_large(Resource pool, std::size_t bytes, std::size_t alignment) {
    auto const alone = pool.try_allocate(a, bytes, alignment);
    if (alone) {
      pool.deallocate(a, *alone, bytes, alignment);
      return;
    }
    ++refused;
    EXPECT_EQ(alone.error().reason, outcome::too_large) << bytes << " of alignment " << alignment;
    auto const little = pool.acquire(a, 4096).wait();
    request never{*this, pool, b, bytes, {.alignment = alignment}};
    EXPECT_TRUE(never.ended() == outcome::too_large || never.ended() == outcome::granted)
        << bytes << " of alignment " << alignment << "; memory may be aligned by chance";
    request behind{*this, pool, b, 4096};
    run_all();
    EXPECT_EQ(behind.ended(), outcome::granted);
  }
  static auto soon() { return gpumem::detail::sync::now() + std::chrono::milliseconds{1}; }
  // For requests that end before: a busy machine may take longer than soon() before it asks.
  static auto late() { return gpumem::detail::sync::now() + gpumem_test::longest_wait(); }
  int refused = 0;
};

TEST_F(pool_too_large, pages_chunks_and_guards_round_the_limit_down) {
  constexpr std::array<std::size_t, 4> limits{100'000'000, 101 * MiB, 64 * MiB + 100, 6 * MiB + 4096};
  for (auto const limit : limits) {
    for (int kind = 0; kind < 3; ++kind) {
      for (auto const bytes : {limit, limit - 4096, limit / (2 * MiB) * (2 * MiB) + 1, limit - 256}) {
        SCOPED_TRACE(testing::Message() << "kind " << kind << ", limit " << limit << ", bytes " << bytes);
        expect_served_or_too_large(
            pool_resource{device, {.limit = limit, .pages = kind != 1, .hardened = {.enabled = kind == 2}}}, bytes,
            256);
      }
    }
  }
  EXPECT_GT(refused, 20);
}

// The chunks are small, so that none that exists already is large enough.
TEST_F(pool_too_large, alignment_needs_room_too) {
  for (bool const pages : {true, false}) {
    for (bool const hardened : {true, false}) {
      for (auto const alignment : {std::size_t{4096}, MiB, 4 * MiB, 128 * MiB}) {
        for (auto const bytes : {64 * MiB, 64 * MiB - 2048, 64 * MiB - 8192, 32 * MiB}) {
          SCOPED_TRACE(testing::Message() << "pages " << pages << ", hardened " << hardened);
          gpumem::pool_options options{.limit = 64 * MiB, .pages = pages, .hardened = {.enabled = hardened}};
          if (!pages) options.chunk_size = 2 * MiB;
          expect_served_or_too_large(pool_resource{device, options}, bytes, alignment);
        }
      }
    }
  }
  pool_resource pool{device, {.limit = 64 * MiB}};
  EXPECT_TRUE(can_have(pool, a, 64 * MiB));
  auto const whole = pool.try_allocate(a, 64 * MiB, 2 * MiB);
  ASSERT_TRUE(whole) << "pages are aligned to their size";
  pool.deallocate(a, *whole, 64 * MiB, 2 * MiB);
}

TEST_F(pool_too_large, chunk_that_exists_already_can_hold_an_aligned_block) {
  pool_resource pool{device, {.initial_size = 64 * MiB, .limit = 64 * MiB, .pages = false}};
  auto little = pool.acquire(a, 4096).wait();
  auto const fits = reinterpret_cast<std::uintptr_t>(little.data()) % (64 * 1024) == 0;
  ASSERT_TRUE(fits) << "the simulated device aligns large memory";
  request waits{*this, pool, b, 64 * MiB, {.alignment = 64 * 1024}};
  EXPECT_FALSE(waits.ended());
  little.reset();
  run_all();
  EXPECT_EQ(waits.ended(), outcome::granted);
}

TEST_F(pool_too_large, sizes_of_blocks_and_arenas_are_rounded) {
  gpumem::fixed_size_resource three{gpumem::cuda_resource{device},
                                    {.block_size = MiB, .pool = {.limit = 3 * MiB + MiB / 2}}};
  auto const held = three.acquire(a, 1).wait();
  EXPECT_EQ(three.acquire_all({{a, MiB}, {a, MiB}, {b, 1}, {b, 1}}).wait_until(late()).error().reason,
            outcome::too_large);
  EXPECT_EQ(three.acquire_all({{a, MiB}, {a, MiB}, {b, 1}}).wait_until(soon()).error().reason, outcome::deadline);
  gpumem::fixed_size_resource none{gpumem::cuda_resource{device},
                                   {.block_size = MiB, .pool = {.limit = MiB + 256, .hardened = {.enabled = true}}}};
  EXPECT_EQ(none.acquire(a, 1).wait_until(late()).error().reason, outcome::too_large);
  gpumem::arena_resource arenas{gpumem::cuda_resource{device}, {.arena_size = MiB + 100, .max_arenas = 2}};
  auto const first = arenas.acquire(a, 4096).wait();
  EXPECT_EQ(arenas.acquire(a, 2 * MiB + 200).wait_until(late()).error().reason, outcome::too_large);
  EXPECT_EQ(arenas.acquire(a, 2 * MiB).wait_until(soon()).error().reason, outcome::deadline);
}

TEST_F(pool_too_large, sum_of_several_blocks_is_rounded_like_each_of_them) {
  pool_resource pool{device, {.limit = 65 * MiB}};
  auto const held = pool.acquire(a, 4096).wait();
  EXPECT_EQ(pool.acquire_all({{a, 32 * MiB}, {b, 32 * MiB + 1}}).wait_until(late()).error().reason, outcome::too_large);
  EXPECT_EQ(pool.acquire_all({{a, 32 * MiB}, {b, 32 * MiB}}).wait_until(soon()).error().reason, outcome::deadline);
  pool_resource hardened{device, {.limit = 64 * MiB, .hardened = {.enabled = true}}};
  auto const other = hardened.acquire(a, 4096).wait();
  EXPECT_EQ(hardened.acquire_all({{a, 32 * MiB}, {b, 32 * MiB - 512}}).wait_until(late()).error().reason,
            outcome::too_large);
}

TEST_F(pool_too_large, size_that_only_its_class_takes_beyond_the_limit_is_served) {
  pool_resource pool{device, {.limit = 5 * MiB / 4 + 4096, .pages = false}};
  EXPECT_TRUE(can_have(pool, a, 5 * MiB / 4 + 4096)) << "sizes are rounded only where there is room";
}

TEST_F(pool_too_large, lower_limit_ends_every_request_that_it_makes_too_large) {
  pool_resource pool{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request head{*this, pool, b, 50 * MiB}, large{*this, pool, b, 65 * MiB}, last{*this, pool, b, 10 * MiB};
  pool.set_limit(65 * MiB + 4096);
  run_all();
  EXPECT_EQ(large.ended(), outcome::too_large) << "whole pages are 64 MiB";
  EXPECT_FALSE(head.ended());
  block.reset();
  run_all();
  EXPECT_EQ(head.ended(), outcome::granted);
  EXPECT_EQ(last.ended(), outcome::granted);
}

TEST_F(pool_too_large, limit_that_is_lowered_during_a_turn_ends_the_request) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  auto small = pool.acquire(a, 4096).wait();
  request first{*this, pool, b, 60 * MiB};
  block.reset(); // gives it a turn
  pool.set_limit(50 * MiB);
  run_all();
  EXPECT_EQ(first.ended(), outcome::too_large);
}

TEST_F(pool_too_large, pool_that_closes_during_an_attempt_ends_the_request_as_closed) {
  pool_resource pool{upstream, {.chunk_size = MiB}};
  auto block = pool.acquire(a, 256).wait();
  upstream.state().capacity = 10 * MiB;
  request first{*this, pool, a, 60 * MiB};
  EXPECT_FALSE(first.ended());
  upstream.state().on_draw = [&] { pool.close(); };
  block.reset(); // nothing is live now: the request tries a last time
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::closed);
  upstream.state().on_draw = {};
}

// The upstream has refused the first request. From then on the pool takes what it has reserved as its limit, and the
// second needs more.
TEST_F(pool_too_large, request_above_what_the_upstream_gave_ends_when_nothing_is_live) {
  upstream.state().capacity = 60 * MiB;
  pool_resource pool{upstream, {.chunk_size = MiB, .max_overtakes = 0}};
  auto block = pool.acquire(a, 30 * MiB).wait();
  request first{*this, pool, a, 80 * MiB}, second{*this, pool, a, 120 * MiB};
  block.reset();
  for (int i = 0; i < 3; ++i) {
    run_all();
    gpumem::simulator::run_until_idle();
    let_the_library_thread_poll();
  }
  run_all();
  EXPECT_EQ(first.ended(), outcome::exhausted);
  EXPECT_EQ(second.ended(), outcome::exhausted);
}

TEST_F(pool_too_large, upstream_that_can_never_give_the_bytes_ends_the_request) {
  gpumem::limiting_adaptor below{gpumem::cuda_resource{device}, {.limit = 64 * MiB}};
  pool_resource pool{below, {}};
  auto const little = pool.acquire(a, 4096).wait();
  EXPECT_EQ(pool.acquire(a, 65 * MiB).wait_until(late()).error().reason, outcome::too_large);
  EXPECT_EQ(pool.try_allocate(a, 65 * MiB).error().reason, outcome::too_large);
  EXPECT_EQ(pool.acquire(a, 64 * MiB).wait_until(soon()).error().reason, outcome::deadline);
}

// The wait of with_retry asks for no memory: no size is too large for it.
class retried_work : public pool_too_large {
protected:
  // Younger work holds 40 MiB and asks for 30 more. Older work preempts it. The work is smaller when it runs again.
  template <class Pool> void expect_smaller_work_runs(Pool pool, std::size_t changed_limit = 0) {
    auto outside = pool.acquire(a, MiB).wait();
    gpumem::scope older{pool, "older"}, younger{pool, "younger"};
    std::size_t first = 40 * MiB, second = 30 * MiB;
    int runs = 0;
    bool ended = false;
    auto const body = [&]() -> gpumem::task<> {
      ++runs;
      auto const one = co_await younger.acquire(b, first, {.resume_on = &executor});
      auto const other = co_await younger.acquire(b, second, {.resume_on = &executor});
    };
    auto const work = [&]() -> gpumem::task<> {
      auto const smaller = [&] { first = second = 4 * MiB; };
      co_await gpumem::with_retry(younger, body, smaller, &executor);
      ended = true;
    };
    auto const running = test::start(work());
    {
      request old{*this, older, a, 30 * MiB};
      run_until([&] {
        gpumem::simulator::run_until_idle();
        return old.ended().has_value();
      });
      EXPECT_EQ(old.ended(), outcome::granted);
      if (changed_limit > 0) pool.set_limit(changed_limit);
    }
    outside.reset();
    run_until([&] {
      gpumem::simulator::run_until_idle();
      return ended;
    });
    EXPECT_EQ(runs, 2);
  }
};

TEST_F(retried_work, waits_for_no_more_than_the_pool_can_have) {
  expect_smaller_work_runs(pool_resource{device, {.limit = 65 * MiB}});
  expect_smaller_work_runs(pool_resource{gpumem::cuda_resource{device}, {.limit = 64 * MiB + 100}});
  expect_smaller_work_runs(pool_resource{device, {.limit = 64 * MiB}}, 48 * MiB);
  expect_smaller_work_runs(pool_resource{device, {.limit = 64 * MiB, .hardened = {.enabled = true}}});
}

TEST_F(retried_work, waits_for_no_more_than_a_limit_before_the_pool) {
  pool_resource pool{device, {.limit = 64 * MiB}};
  expect_smaller_work_runs(gpumem::limiting_adaptor{pool, {.limit = 110 * MiB}}, 50 * MiB);
}

} // namespace
