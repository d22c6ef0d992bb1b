// A pool over pages waits for the work of the request's stream before it makes pages that it could move. Time is that
// of the schedules: a request that does not wait takes none in which the device could run.
// SPDX-License-Identifier: Apache-2.0
#include <base/tuning.hpp>
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include <cuda.h>

import gpumem;
#include "../support/timed_item.hpp"

namespace {

using namespace std::chrono_literals;
using namespace gpumem::literals;
using gpumem::detail::sync::now;
namespace simulator = gpumem::simulator;
namespace tuning = gpumem::detail::tuning;

class own_work_wait : public gpumem_test::simulated_test {
protected:
  // Uses the pool until it has saved all the time for moves that a pool can save.
  static void save_time(auto& pool) {
    for (auto const end = now() + 22 * tuning::max_move_burst; now() < end;) {
      pool.deallocate_sync(pool.allocate_sync(4_MiB), 4_MiB);
      gpumem::detail::sync::sleep_for(tuning::max_move_burst);
    }
    pool.trim();
  }
  void TearDown() override {
    gpumem::detail::cancel_timer(device_runs);
    simulated_test::TearDown();
  }
  // Frees each second of eight blocks while the stream still works on it: 16 MiB of 32 MiB are free, in four places.
  void free_half_in_use(auto& pool, cuda::stream_ref on) {
    for (auto& block : blocks) block = pool.allocate(on, 4_MiB);
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      simulator::work(on, {simulator::write(blocks[i], 4_MiB)});
      pool.deallocate(on, blocks[i], 4_MiB);
    }
  }
  void free_rest(auto& pool, cuda::stream_ref on) {
    for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(on, blocks[i], 4_MiB);
  }
  // Allocates 16 MiB, and frees all. Returns the bytes that were then reserved.
  std::size_t reserved_for_large_block(auto& pool, cuda::stream_ref on) {
    auto* const large = pool.allocate(on, 16_MiB);
    auto const reserved = pool.statistics().reserved;
    pool.deallocate(on, large, 16_MiB);
    free_rest(pool, on);
    return reserved;
  }
  // The device does its work after this time.
  void run_device_after(gpumem::detail::sync::duration time) { gpumem::detail::start_timer(device_runs, now() + time); }

  gpumem::device device{0};
  gpumem::stream a{device}, b{device};
  std::array<void*, 8> blocks{};
  test::timed_item device_runs{[] { simulator::run_until_idle(); }};
};

TEST_F(own_work_wait, moves_pages_that_the_stream_has_just_freed) {
  gpumem::pool_resource pool{device};
  save_time(pool);
  free_half_in_use(pool, a);
  run_device_after(5ms);
  EXPECT_EQ(reserved_for_large_block(pool, a), 32_MiB);
}

TEST_F(own_work_wait, moves_pages_of_the_legacy_stream) {
  gpumem::pool_resource pool{device};
  save_time(pool);
  cuda::stream_ref const legacy{CU_STREAM_LEGACY};
  free_half_in_use(pool, legacy);
  run_device_after(5ms);
  EXPECT_EQ(reserved_for_large_block(pool, legacy), 32_MiB);
}

TEST_F(own_work_wait, is_bounded_and_not_repeated_if_the_work_does_not_end) {
  for (double const effort : {.05, 1.}) {
    gpumem::pool_resource pool{device, {.effort = effort}};
    save_time(pool);
    free_half_in_use(pool, a);
    auto const begin = now();
    auto* const large = pool.allocate(a, 16_MiB);
    auto const first = now() - begin;
    EXPECT_EQ(pool.statistics().reserved, 32_MiB + 16_MiB);
    EXPECT_GE(first, 40ms);
    EXPECT_LE(first, tuning::max_move_burst + 1ms);
    auto* const next = pool.allocate(a, 16_MiB);
    EXPECT_LT(now() - begin - first, 1ms) << "the same work is awaited again";
    for (auto* const each : {large, next}) pool.deallocate(a, each, 16_MiB);
    free_rest(pool, a);
    simulator::run_until_idle();
  }
}

TEST_F(own_work_wait, does_not_keep_the_caller_from_other_streams) {
  gpumem::pool_resource pool{device};
  save_time(pool);
  auto* const of_b = pool.allocate(b, 4_MiB);
  free_half_in_use(pool, a);
  simulator::work(b, {simulator::write(of_b, 4_MiB)});
  pool.deallocate(b, of_b, 4_MiB);
  run_device_after(5ms);
  EXPECT_EQ(reserved_for_large_block(pool, a), 36_MiB + 16_MiB);
}

TEST_F(own_work_wait, is_not_for_requests_that_must_not_block) {
  gpumem::pool_resource pool{device};
  save_time(pool);
  free_half_in_use(pool, a);
  run_device_after(5ms);
  auto const begin = now();
  gpumem::sync_wait(pool.acquire(a, 16_MiB)).reset();
  auto const tried = pool.try_allocate(a, 40_MiB);
  EXPECT_LT(now() - begin, 5ms);
  pool.deallocate(a, *tried, 40_MiB);
  free_rest(pool, a);
}

TEST_F(own_work_wait, is_not_made_without_effort) {
  gpumem::pool_resource pool{device, {.effort = 0}};
  free_half_in_use(pool, a);
  run_device_after(5ms);
  EXPECT_EQ(reserved_for_large_block(pool, a), 32_MiB + 16_MiB);
}

TEST_F(own_work_wait, is_not_made_for_less_than_half_of_the_pages) {
  gpumem::pool_resource pool{device};
  save_time(pool);
  free_half_in_use(pool, a);
  auto const begin = now();
  auto* const large = pool.allocate(a, 64_MiB);
  EXPECT_LT(now() - begin, 1ms);
  pool.deallocate(a, large, 64_MiB);
  free_rest(pool, a);
}

// The last test, since a device stays lost for the rest of the process.
TEST_F(own_work_wait, ends_if_the_device_is_lost) {
  gpumem::pool_resource pool{device, {.effort = 1}};
  free_half_in_use(pool, a);
  test::timed_item fault{[] { simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS); }};
  auto const begin = now();
  gpumem::detail::start_timer(fault, begin + 5ms);
  EXPECT_THROW((void)pool.allocate(a, 16_MiB), gpumem::cuda_error);
  EXPECT_LT(now() - begin, 40ms);
  gpumem::detail::cancel_timer(fault);
  free_rest(pool, a);
}

} // namespace
