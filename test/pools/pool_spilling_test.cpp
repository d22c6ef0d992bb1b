// Pressure callbacks: when the pool calls them, and on which stream they free.
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

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class pool_spilling : public gpumem_test::waiting_fixture {
protected:
  test::manual_executor spills; // runs the callback
};

TEST_F(pool_spilling, callback_is_called_again_after_a_turn_that_failed) {
  pool_resource pool{device, {.initial_size = 8 * MiB, .limit = 8 * MiB, .pages = false}};
  std::deque<gpumem::allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.acquire(a, MiB).wait());
  int calls = 0;
  auto const spiller = pool.on_pressure(spills, [&](std::size_t) {
    ++calls;
    blocks[1].reset();
    return MiB;
  });
  request first{*this, pool, a, 3 * MiB};
  run_until([&] { return spills.posted(); });
  for (auto const i : {0, 2, 4}) blocks[i].reset();
  EXPECT_TRUE(spills.run_one());
  EXPECT_EQ(calls, 0) << "the request has its turn, and may need nothing more";
  run_all();
  EXPECT_FALSE(first.ended()) << "there are 3 MiB, but not in one piece";
  run_until([&] {
    spills.run_one();
    return first.ended().has_value();
  });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(calls, 1);
}

TEST_F(pool_spilling, memory_spilled_on_another_stream_is_used_after_its_work) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto cached = pool.acquire(a, 80 * MiB).wait();
  auto const spiller = pool.on_pressure(spills, [&](std::size_t) -> std::size_t {
    if (!cached) return 0;
    cached.set_stream(b);
    use(cached);
    free_used(cached);
    return 80 * MiB;
  });
  request first{*this, pool, a, 60 * MiB};
  run_until([&] {
    spills.run_one();
    return first.ended().has_value();
  });
  EXPECT_EQ(first.ended(), outcome::granted);
  use(first.block()); // the checker reports a fault if it is not ordered after the work on b
  free_used(first.block());
  simulator::run_until_idle();
}

} // namespace
