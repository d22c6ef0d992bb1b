// A lost device: requests fail, no work counts as complete, and frees only update the pool's records.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <thread>

#include <cuda.h>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
namespace simulator = gpumem::simulator;

using pool_lost = gpumem_test::simulated_test;

// All in one test, since a device stays lost for the rest of the process.
TEST_F(pool_lost, allocations_fail_and_frees_make_no_driver_call) {
  auto const device = gpumem::device::current();
  gpumem::stream const a{device}, b{device};
  auto const create = gpumem_test::driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  CUstream made = nullptr;
  create(&made, CU_STREAM_NON_BLOCKING);
  cuda::stream_ref const foreign{made};
  gpumem_test::recording_upstream const upstream, beside;
  {
    pool_resource hard{beside, {.hardened = {.enabled = true}}};
    auto* const kept = hard.allocate(a, 1024);
    hard.deallocate(a, hard.allocate(a, 1024), 1024);
    pool_resource r{upstream, {.initial_size = 4096, .limit = 4096}};
    auto* const p = r.allocate(a, 1024);
    auto* const q = r.allocate(foreign, 1024);
    auto* const live = r.allocate(a, 2048);
    r.deallocate(a, p, 1024);
    pool_resource full{gpumem_test::recording_upstream{}, {.limit = 4096}};
    auto* const all = full.allocate(a, 4096);
    test::manual_executor executor;
    bool told = false;
    auto const wait = [&]() -> gpumem::task<> {
      try {
        (void)co_await full.acquire(b, 1024, {.resume_on = &executor});
      } catch (gpumem::cuda_error const&) { told = true; }
    };
    auto const waits = test::start(wait());
    simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
    auto const refused = r.try_allocate(b, 1024); // polls the free of a and learns of the loss
    ASSERT_FALSE(refused);
    EXPECT_TRUE(device.lost());
    EXPECT_EQ(r.try_allocate(a, 1024).error().reason, outcome::device_lost) << "not even its own memory";
    EXPECT_EQ(r.try_allocate(foreign, 1024).error().reason, outcome::device_lost);
    EXPECT_THROW((void)r.allocate(a, 1024), gpumem::cuda_error);
    full.deallocate(a, all, 4096);
    while (executor.run_one()) {}
    EXPECT_TRUE(told) << "a request that waits ends with the next free";
    r.deallocate(foreign, q, 1024);
    r.deallocate(a, live);
    EXPECT_EQ(r.statistics().live, 0u);
    EXPECT_EQ(r.trim(), 0u) << "an error is not completion";
    EXPECT_EQ(hard.try_allocate(a, 1024).error().reason, outcome::device_lost);
    hard.deallocate(a, kept, 1024);
    EXPECT_EQ(hard.statistics().live, 0u);
    EXPECT_EQ(hard.trim(), 0u);
    EXPECT_FALSE(hard.synchronize(std::chrono::hours{1}));
  }
  EXPECT_TRUE(gpumem_test::wait_for_releases(upstream.state(), 1)) << "a closed pool returns all its memory";
  EXPECT_TRUE(gpumem_test::wait_for_releases(beside.state(), 1));
}

} // namespace
