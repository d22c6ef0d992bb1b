// Every way in which a wait for a pool's memory ends without memory, or does not begin.
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
#include "limited_waits.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

using pool_waiting_ends = gpumem_test::limited_waits;

TEST_F(pool_waiting_ends, stop_ends_a_waiting_request_through_its_executor_and_serves_the_next) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  request first{*this, pool, b, 60 * MiB, source.get_token()}, second{*this, pool, b, 30 * MiB};
  source.request_stop();
  EXPECT_FALSE(first.ended());
  run_all();
  EXPECT_EQ(first.ended(), outcome::stopped);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_ends, stop_requested_inside_a_free_ends_the_next_request) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 100 * MiB).wait();
  gpumem::inline_executor here;
  std::stop_source source;
  bool granted = false;
  auto const stops = [&]() -> gpumem::task<> {
    auto const mine = co_await pool.acquire(a, 60 * MiB, {.resume_on = &here});
    source.request_stop();
    granted = true;
  };
  auto const first = test::start(stops());
  request second{*this, pool, b, 60 * MiB, source.get_token()}, third{*this, pool, b, 100 * MiB};
  block.reset();
  EXPECT_TRUE(granted);
  run_all();
  EXPECT_EQ(second.ended(), outcome::stopped);
  EXPECT_EQ(third.ended(), outcome::granted) << "after the first";
}

TEST_F(pool_waiting_ends, stop_during_a_turn_is_too_late_if_memory_is_free) {
  expect_stop_is_too_late_in_a_turn(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting_ends, stop_during_a_turn_ends_the_request_if_memory_is_fragmented) {
  pool_resource pool{device, {.initial_size = 4 * MiB, .limit = 4 * MiB, .pages = false}};
  std::vector<gpumem::allocation> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  std::stop_source source;
  request first{*this, pool, a, 2 * MiB, source.get_token()};
  for (auto const i : {0, 2}) blocks[i].reset();
  source.request_stop();
  EXPECT_FALSE(first.ended());
  run_all();
  EXPECT_EQ(first.ended(), outcome::stopped);
}

TEST_F(pool_waiting_ends, destroyed_request_is_forgotten) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request last{*this, pool, b, 30 * MiB, {}, false};
  {
    request first{*this, pool, b, 60 * MiB};
    last.begin();
    EXPECT_FALSE(last.ended());
  }
  run_all();
  EXPECT_EQ(last.ended(), outcome::granted) << "the request before it has left";
  block.reset();
  EXPECT_FALSE(executor.run_one());
}

TEST_F(pool_waiting_ends, destroyed_request_passes_its_turn_on) {
  expect_turn_is_passed_on(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting_ends, closed_pool_ends_a_waiting_request) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request first{*this, pool, b, 60 * MiB}, second{*this, pool, b, 10 * MiB};
  pool.close();
  EXPECT_FALSE(first.ended());
  run_all();
  EXPECT_EQ(first.ended(), outcome::closed);
  EXPECT_EQ(second.ended(), outcome::closed);
  EXPECT_EQ(pool.acquire(a, MiB).try_now().error().reason, outcome::closed);
  EXPECT_EQ(pool.try_allocate(a, MiB).error().reason, outcome::closed);
  EXPECT_THROW((void)pool.allocate_sync(MiB), gpumem::acquire_error);
  request late{*this, pool, b, MiB};
  EXPECT_EQ(late.ended(), outcome::closed);
  block.reset();
  EXPECT_EQ(pool.statistics().live, 0u);
  simulator::run_until_idle();
  EXPECT_GT(pool.trim(), 0u);
}

TEST_F(pool_waiting_ends, closed_pool_ends_very_many_waiting_requests) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto const block = pool.acquire(a, 100 * MiB).wait();
  std::size_t closed = 0;
  auto const waits = [&]() -> gpumem::task<> {
    try {
      (void)co_await pool.acquire(b, MiB, {.resume_on = &executor});
    } catch (gpumem::acquire_error const& e) { closed += e.reason() == outcome::closed; }
  };
  std::vector<test::started> all;
  for (int i = 0; i < 100'000; ++i) all.push_back(test::start(waits()));
  for (int i = 0; i < 1000; ++i) all.pop_back(); // destroyed while they wait
  pool.close();
  run_all();
  EXPECT_EQ(closed, all.size());
}

TEST_F(pool_waiting_ends, last_handle_ends_waiting_requests) {
  std::optional pool{pool_resource{device, {.limit = 8 * MiB}}};
  auto block = pool->acquire(a, 6 * MiB).wait();
  request first{*this, *pool, b, 6 * MiB}, second{*this, *pool, b, 6 * MiB}, third{*this, *pool, b, 6 * MiB};
  pool.reset();
  block.reset();
  second.destroy(); // destroyed while it has a turn
  run_all();
  EXPECT_EQ(first.ended(), outcome::closed);
  EXPECT_EQ(third.ended(), outcome::closed);
  EXPECT_TRUE(wait_for_device_bytes(before())) << "the pool was not closed by the last request";
}

TEST_F(pool_waiting_ends, request_larger_than_the_limit_or_the_device_fails_at_once) {
  pool_resource small{device, {.limit = 8 * MiB}}, large{device};
  auto one = small.acquire(a, MiB).wait(), other = large.acquire(a, MiB).wait();
  request first{*this, small, a, 9 * MiB}, second{*this, large, a, std::size_t{81} << 30};
  EXPECT_EQ(first.ended(), outcome::too_large);
  EXPECT_EQ(second.ended(), outcome::too_large);
}

TEST_F(pool_waiting_ends, request_fails_at_once_if_no_block_is_live) {
  upstream.state().capacity = 8 * MiB;
  pool_resource pool{upstream};
  request first{*this, pool, a, 10 * MiB};
  EXPECT_EQ(first.ended(), outcome::exhausted);
}

TEST_F(pool_waiting_ends, request_ends_exhausted_if_all_is_freed_and_it_still_does_not_fit) {
  upstream.state().capacity = 8 * MiB;
  pool_resource pool{upstream, {.max_overtakes = 0}}; // the second must not get memory before the first ends
  auto block = pool.acquire(a, 4 * MiB).wait();
  request first{*this, pool, a, 10 * MiB}, second{*this, pool, a, 6 * MiB};
  block.reset();
  run_all();
  EXPECT_FALSE(first.ended()) << "free memory may be returned to the upstream after its use";
  simulator::run_until_idle();
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::exhausted);
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_ends, request_without_a_limit_waits_when_the_device_is_full) {
  upstream.state().capacity = 100 * MiB;
  pool_resource pool{upstream};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, a, 60 * MiB};
  EXPECT_FALSE(second.ended());
  block.reset();
  run_all();
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_ends, request_succeeds_if_only_its_rounding_exceeds_the_limit) {
  constexpr std::size_t unit = 1024;
  pool_resource pool{device, {.initial_size = 11 * unit, .limit = 36 * unit, .pages = false, .max_overtakes = 0}};
  auto block = pool.acquire(a, 11 * unit).wait();
  request first{*this, pool, a, 24 * unit + 1}, second{*this, pool, b, 36 * unit}; // rounding makes the first 26 KiB
  block.reset();
  auto const ended = [](request& which) { return which.ended().has_value(); };
  run_until([&] {
    simulator::run_until_idle();
    return ended(first);
  });
  EXPECT_EQ(first.ended(), outcome::granted);
  use(first.block());
  free_used(first.block());
  run_until([&] {
    simulator::run_until_idle();
    return ended(second);
  });
  EXPECT_EQ(second.ended(), outcome::granted);
}

TEST_F(pool_waiting_ends, request_ends_at_its_deadline) {
  expect_end_at_the_deadline(pool_resource{device, {.limit = 100 * MiB}});
}

TEST_F(pool_waiting_ends, request_on_a_capturing_stream_is_refused) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request parked{*this, pool, b, 60 * MiB};
  b.begin_capture();
  request late{*this, pool, b, 60 * MiB};
  EXPECT_EQ(late.ended(), outcome::capture_unsupported);
  block.reset();
  run_all();
  EXPECT_EQ(parked.ended(), outcome::capture_unsupported);
  gpumem::driver_api::driver().graph_destroy(b.end_capture());
  EXPECT_TRUE(pool.acquire(b, 60 * MiB).try_now());
}

// Calls `use` with a pool of each mode that has a limit of 100 MiB, of which 60 MiB are live.
template <class Use> void in_each_mode(gpumem::device device, gpumem::stream& stream, Use use) {
  for (bool const hardened : {false, true}) {
    SCOPED_TRACE(hardened);
    pool_resource pool{device, {.limit = 100 * MiB, .hardened = {.enabled = hardened}}};
    auto block = pool.acquire(stream, 60 * MiB).wait();
    use(pool, block, pool.statistics().failures);
  }
}

TEST_F(pool_waiting_ends, request_that_waits_and_is_served_is_no_failure) {
  in_each_mode(device, a, [&](auto& pool, auto& block, std::uint64_t before) {
    request served{*this, pool, a, 60 * MiB};
    EXPECT_EQ(pool.statistics().waiting, 1u);
    EXPECT_EQ(pool.statistics().failures, before);
    block.reset();
    run_until([&] {
      simulator::run_until_idle();
      return served.ended().has_value();
    });
    EXPECT_EQ(served.ended(), outcome::granted);
    EXPECT_EQ(pool.statistics().failures, before);
  });
}

TEST_F(pool_waiting_ends, request_that_ends_without_memory_is_one_failure) {
  in_each_mode(device, a, [&](auto& pool, auto& /*block*/, std::uint64_t before) {
    auto const failures = [&] { return pool.statistics().failures - before; };
    EXPECT_FALSE(pool.acquire(a, 60 * MiB).try_now());
    EXPECT_EQ(failures(), 1u);
    EXPECT_FALSE(pool.try_allocate(a, 60 * MiB));
    EXPECT_EQ(failures(), 2u);
    EXPECT_FALSE(pool.acquire(a, 200 * MiB).try_now());
    EXPECT_EQ(failures(), 3u);
    EXPECT_FALSE(pool.acquire_all({{a, 50 * MiB}, {a, 50 * MiB}}).try_now());
    EXPECT_EQ(failures(), 4u);
    request too_large{*this, pool, a, 200 * MiB};
    EXPECT_EQ(too_large.ended(), outcome::too_large);
    EXPECT_EQ(failures(), 5u);
    std::stop_source source;
    request stopped{*this, pool, a, 60 * MiB, source.get_token()};
    EXPECT_EQ(failures(), 5u);
    source.request_stop();
    run_all();
    EXPECT_EQ(stopped.ended(), outcome::stopped);
    EXPECT_EQ(failures(), 6u);
    { request destroyed{*this, pool, a, 60 * MiB}; }
    EXPECT_EQ(failures(), 7u);
    request lowered{*this, pool, a, 90 * MiB}, closed{*this, pool, a, 60 * MiB};
    pool.set_limit(80 * MiB);
    run_all();
    EXPECT_EQ(lowered.ended(), outcome::too_large);
    EXPECT_EQ(failures(), 8u);
    pool.close();
    run_all();
    EXPECT_EQ(closed.ended(), outcome::closed);
    EXPECT_EQ(failures(), 9u);
    EXPECT_FALSE(pool.acquire(a, 1).try_now());
    EXPECT_EQ(failures(), 10u);
  });
}

} // namespace
