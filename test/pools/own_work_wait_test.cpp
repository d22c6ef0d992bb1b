// A pool over pages waits for the work of the request's stream before it makes pages that it could move.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <stop_token>
#include <thread>

#include <cuda.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace gpumem::literals;

class own_work_wait : public test::stepped_device {
protected:
  // Frees each second of eight blocks while the stream still works on it: 16 MiB of 32 MiB are free, in four places.
  void free_half_in_use(auto& pool, cuda::stream_ref on) {
    for (auto& block : blocks_) block = pool.allocate(on, 4_MiB);
    for (std::size_t i = 0; i < blocks_.size(); i += 2) {
      simulator::work(on, {simulator::write(blocks_[i], 4_MiB)});
      pool.deallocate(on, blocks_[i], 4_MiB);
    }
  }
  // Allocates 16 MiB while another thread runs the device, and frees all. Returns the bytes that were then reserved.
  std::size_t reserved_for_large_block(auto& pool, cuda::stream_ref on) {
    std::size_t reserved = 0;
    {
      std::jthread const device{[](std::stop_token const& stop) {
        std::this_thread::sleep_for(std::chrono::milliseconds{2});
        while (!stop.stop_requested()) simulator::run_until_idle();
      }};
      auto* const large = pool.allocate(on, 16_MiB);
      reserved = pool.statistics().reserved;
      pool.deallocate(on, large, 16_MiB);
    }
    for (std::size_t i = 1; i < blocks_.size(); i += 2) pool.deallocate(on, blocks_[i], 4_MiB);
    return reserved;
  }
  gpumem::device const device_{0};
  gpumem::stream a_{device_}, b_{device_};
  std::array<void*, 8> blocks_{};
};

TEST_F(own_work_wait, moves_pages_that_the_stream_has_just_freed) {
  gpumem::pool_resource pool{device_};
  free_half_in_use(pool, a_);
  EXPECT_EQ(reserved_for_large_block(pool, a_), 32_MiB);
}

TEST_F(own_work_wait, moves_pages_of_the_legacy_stream) {
  gpumem::pool_resource pool{device_};
  cuda::stream_ref const legacy{CU_STREAM_LEGACY};
  free_half_in_use(pool, legacy);
  EXPECT_EQ(reserved_for_large_block(pool, legacy), 32_MiB);
}

TEST_F(own_work_wait, is_bounded_if_the_work_does_not_end) {
  for (double const effort : {.05, 1.}) {
    gpumem::pool_resource pool{device_, {.effort = effort}};
    free_half_in_use(pool, a_);
    auto* const large = pool.allocate(a_, 16_MiB); // no other thread runs the device
    EXPECT_EQ(pool.statistics().reserved, 32_MiB + 16_MiB);
    pool.deallocate(a_, large, 16_MiB);
    for (std::size_t i = 1; i < blocks_.size(); i += 2) pool.deallocate(a_, blocks_[i], 4_MiB);
  }
}

TEST_F(own_work_wait, does_not_keep_the_caller_from_other_streams) {
  gpumem::pool_resource pool{device_};
  auto* const of_b = pool.allocate(b_, 4_MiB);
  free_half_in_use(pool, a_);
  simulator::work(b_, {simulator::write(of_b, 4_MiB)});
  pool.deallocate(b_, of_b, 4_MiB);
  EXPECT_EQ(reserved_for_large_block(pool, a_), 36_MiB + 16_MiB);
}

TEST_F(own_work_wait, is_not_for_requests_that_must_not_block) {
  gpumem::pool_resource pool{device_};
  free_half_in_use(pool, a_);
  gpumem::sync_wait(pool.acquire(a_, 16_MiB)).reset();
  EXPECT_EQ(reserved_for_large_block(pool, a_), 32_MiB + 16_MiB);
}

TEST_F(own_work_wait, is_not_made_without_effort) {
  gpumem::pool_resource pool{device_, {.effort = 0}};
  free_half_in_use(pool, a_);
  EXPECT_EQ(reserved_for_large_block(pool, a_), 32_MiB + 16_MiB);
}

// Half of each page is free: a wait would give nothing.
TEST_F(own_work_wait, is_not_made_if_no_page_is_free) {
  gpumem::pool_resource pool{device_, {.effort = 1}};
  for (auto& block : blocks_) block = pool.allocate(a_, 1_MiB);
  for (std::size_t i = 0; i < blocks_.size(); i += 2) {
    simulator::work(a_, {simulator::write(blocks_[i], 1_MiB)});
    pool.deallocate(a_, blocks_[i], 1_MiB);
  }
  auto const begin = std::chrono::steady_clock::now();
  auto* const large = pool.allocate(a_, 4_MiB); // no other thread runs the device
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{50}) << "the longest wait";
  pool.deallocate(a_, large, 4_MiB);
  for (std::size_t i = 1; i < blocks_.size(); i += 2) pool.deallocate(a_, blocks_[i], 1_MiB);
}

} // namespace
