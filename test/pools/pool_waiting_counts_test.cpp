// The cost of waiting for a pool's memory: driver calls, and host allocations.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"
#include "../support/allocation_count.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/timed_item.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

using pool_waiting_counts = gpumem_test::waiting_fixture;

TEST_F(pool_waiting_counts, free_makes_no_driver_call_on_another_stream) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  simulator::clear_driver_calls();
  auto const waits = [] { return simulator::report().driver_calls["cuStreamWaitEvent"]; };
  block.reset();
  EXPECT_EQ(waits(), 0u);
  EXPECT_TRUE(executor.run_one());
  EXPECT_EQ(waits(), 1u);
}

TEST_F(pool_waiting_counts, no_poll_is_made_while_only_a_free_can_help) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto block = pool.acquire(a, 60 * MiB).wait();
  request second{*this, pool, b, 60 * MiB};
  auto const calls = gpumem::driver_api::driver_calls();
  std::atomic<bool> passed{false};
  test::timed_item later{[&] { passed = true; }};
  gpumem::detail::start_timer(later,
                              gpumem::detail::sync::now() + std::chrono::milliseconds{2}); // later than a poll would be
  while (!passed) std::this_thread::yield();
  gpumem::detail::cancel_timer(later);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), calls);
}

TEST_F(pool_waiting_counts, request_with_a_deadline_makes_no_host_allocation) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  std::optional<std::size_t> allocations;
  auto body = [&]() -> gpumem::task<> {
    auto const before = test::host_allocations();
    auto const in_an_hour = gpumem::detail::sync::now() + std::chrono::hours{1};
    auto const mine = co_await pool.acquire(a, 60 * MiB, {.resume_on = &executor, .deadline = in_an_hour});
    allocations = test::host_allocations() - before;
  };
  for (int i = 0; i < 8; ++i) { // warm-up: what first uses create
    simulator::run_until_idle();
    gpumem::extend::identify(a, device).identity().timeline().poll(); // events return to their pool
    auto block = pool.acquire(a, 60 * MiB).wait();
    auto const running = test::start(body());
    block.reset();
    allocations.reset();
    run_all();
  }
  EXPECT_EQ(allocations, 0u);
}

} // namespace
