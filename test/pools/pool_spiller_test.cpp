// A pressure callback that needs memory of the same pool in order to free memory.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
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
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class pool_spiller : public gpumem_test::waiting_fixture {
protected:
  // Copies a block of 10 MiB to the host through another block of the pool, if it gets one, and frees both.
  template <class Pool> std::size_t spill(Pool& pool) {
    if (cached.empty()) return 0;
    EXPECT_FALSE(pool.try_allocate(a, 101 * MiB - pool.statistics().live)) << "more than is free";
    auto const staging = pool.try_allocate(a, 10 * MiB);
    staged += staging.has_value();
    if (staging)
      simulator::work(a, {simulator::read(cached.front().data(), 10 * MiB), simulator::write(*staging, MiB)});
    EXPECT_LE(pool.statistics().live, 100 * MiB);
    if (staging) pool.deallocate(a, *staging, 10 * MiB);
    cached.pop_front();
    return 10 * MiB;
  }
  template <class Pool> void fill(Pool& pool) {
    for (int i = 0; i < 9; ++i) cached.push_back(pool.acquire(a, 10 * MiB).wait());
  }
  std::deque<gpumem::allocation> cached;
  int staged = 0;
};

TEST_F(pool_spiller, spilling_with_extra_memory_stays_below_the_limit) {
  for (unsigned const most : {0u, 1u, 16u}) {
    pool_resource pool{device, {.initial_size = 100 * MiB, .limit = 100 * MiB, .pages = false, .max_overtakes = most}};
    fill(pool);
    staged = 0;
    auto const spiller = pool.on_pressure(executor, [&](std::size_t wanted) {
      EXPECT_GT(wanted, 0u);
      return spill(pool);
    });
    request first{*this, pool, b, 40 * MiB}, second{*this, pool, b, 30 * MiB}, third{*this, pool, a, 20 * MiB};
    run_until([&] {
      simulator::run_until_idle();
      return first.ended() && second.ended() && third.ended();
    });
    for (auto const* each : {&first, &second, &third}) EXPECT_EQ(each->ended(), outcome::granted) << most;
    EXPECT_LE(pool.statistics().peak_reserved, 100 * MiB);
    EXPECT_EQ(pool.statistics().peak_live, most > 0 ? 100 * MiB : 90 * MiB) << most;
    EXPECT_EQ(staged > 0, most > 0) << "a request that must not overtake gets nothing while others wait";
    cached.clear();
  }
}

TEST_F(pool_spiller, request_ends_if_spilling_finds_no_extra_memory) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  gpumem::scope caches{pool}, work{pool};
  fill(caches);
  int calls = 0;
  auto const spiller = pool.on_pressure(executor, [&](std::size_t) -> std::size_t {
    ++calls;
    pool.deallocate(a, pool.allocate(a, 20 * MiB), 20 * MiB); // throws
    return 10 * MiB;
  });
  auto const mark = caches.waiting_elsewhere();
  request asks{*this, work, b, 40 * MiB};
  run_until([&] { return asks.ended().has_value(); });
  EXPECT_EQ(asks.ended(), outcome::stalled);
  EXPECT_EQ(calls, 1);
  cached.clear();
}

} // namespace
