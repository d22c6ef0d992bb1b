// How often the library thread polls for completion, and that other users of that thread run meanwhile. Time is that of
// the schedules: it passes only where a test lets it.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::pool_resource;
using gpumem::detail::sync::now;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

// Two pools, each with one request that has waited for device work long enough that polls are rare.
class pool_waiting_polls : public gpumem_test::waiting_fixture {
protected:
  using pool_type = pool_resource<gpumem::cuda_resource>;

  void SetUp() override {
    for (auto& one : pools) {
      auto block = one->acquire(a, 60 * MiB).wait();
      use(block);
      free_used(block);
    }
    first.emplace(*this, *pools[0], b, 60 * MiB);
    second.emplace(*this, *pools[1], b, 60 * MiB);
    for (int i = 0; i < 3; ++i) { // for turns that come too early
      gpumem::detail::sync::sleep_for(1ms);
      run_all();
    }
    gpumem::detail::sync::sleep_for(100ms);
  }
  void TearDown() override {
    for (auto* const one : {&first, &second}) one->reset();
    for (auto& one : pools) one.reset();
    let_pass(); // the pools release their memory
    waiting_fixture::TearDown();
  }

  static void let_pass() {
    simulator::run_until_idle();
    gpumem::detail::sync::sleep_for(100ms);
  }
  std::optional<pool_type> make_pool() const {
    return pool_type{device, {.limit = 100 * MiB, .cross_stream = gpumem::reuse_policy::completed}};
  }

  std::array<std::optional<pool_type>, 2> pools{make_pool(), make_pool()};
  std::optional<request> first, second;
};

TEST_F(pool_waiting_polls, polls_of_one_pool_hide_no_completion_from_another) {
  let_pass();
  run_all();
  EXPECT_EQ(first->ended(), gpumem::outcome::granted);
  EXPECT_EQ(second->ended(), gpumem::outcome::granted);
}

TEST_F(pool_waiting_polls, polls_are_rare_while_nothing_changes) {
  auto const before = gpumem::driver_api::driver_calls();
  gpumem::detail::sync::sleep_for(100ms);
  EXPECT_GE(gpumem::driver_api::driver_calls() - before, 100u);
  EXPECT_LE(gpumem::driver_api::driver_calls() - before, 1'000u);
}

TEST_F(pool_waiting_polls, polls_leave_the_library_thread_to_others) {
  auto library_thread_runs = []() -> gpumem::task<> { co_await test::hop{gpumem::default_executor()}; };
  for (int i = 0; i < 100; ++i) {
    auto const before = now();
    gpumem::sync_wait(library_thread_runs());
    EXPECT_LT(now() - before, 50us);
    gpumem::detail::sync::sleep_for(70us);
  }
}

using pool_waiting_passes = gpumem_test::waiting_fixture;

// Memory goes back once a free finds an eighth more than the threshold. After that release, a pass for a waiting
// request does not begin another one, although a stream still uses other free memory.
TEST_F(pool_waiting_passes, memory_a_little_beyond_the_release_threshold_stays) {
  {
    pool_resource pool{device, {.limit = 100 * MiB, .release_threshold = 64 * MiB, .effort = 1}};
    auto* const most = pool.allocate(a, 24 * MiB);
    auto in_use = pool.acquire(b, 40 * MiB).wait();
    use(in_use);
    auto* const more = pool.allocate(a, 12 * MiB);
    free_used(in_use);
    pool.deallocate(a, more, 12 * MiB);
    a.synchronize();
    gpumem::detail::sync::sleep_for(100ms);
    EXPECT_EQ(pool.statistics().reserved, 64 * MiB);
    pool.deallocate(a, pool.allocate(a, 2 * MiB), 2 * MiB);
    a.synchronize();
    request one{*this, pool, a, 60 * MiB};
    gpumem::detail::sync::sleep_for(100ms);
    EXPECT_EQ(pool.statistics().reserved, 66 * MiB);
    one.destroy();
    pool.deallocate(a, most, 24 * MiB);
    simulator::run_until_idle();
  }
  gpumem::detail::sync::sleep_for(100ms); // the pool releases its memory
}

} // namespace
