// A pool over pages waits for the work of the request's stream before it makes pages that it could move.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <cstddef>

#include <cuda.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace gpumem::literals;

class own_work_wait : public simulated {
protected:
  // Frees each second of eight blocks while the stream still works on it: 16 MiB of 32 MiB are free, in four places.
  void free_half_in_use(auto& pool, gpumem::stream& on) {
    for (auto& block : blocks_) block = pool.allocate(on, 4_MiB);
    for (std::size_t i = 0; i < blocks_.size(); i += 2) {
      work_on(on, blocks_[i]);
      pool.deallocate(on, blocks_[i], 4_MiB);
    }
  }
  // More work than the simulated device does during the polls of young events.
  static void work_on(gpumem::stream& on, void* block) {
    for (int i = 0; i < 2000; ++i) simulator::work(on, {simulator::write(block, 4_MiB)});
  }
  void free_rest(auto& pool, gpumem::stream& on) {
    for (std::size_t i = 1; i < blocks_.size(); i += 2) pool.deallocate(on, blocks_[i], 4_MiB);
  }

  gpumem::device const device_{0};
  gpumem::stream a_{device_}, b_{device_};
  std::array<void*, 8> blocks_{};
};

TEST_F(own_work_wait, moves_pages_that_the_stream_has_just_freed) {
  gpumem::pool_resource pool{device_, {.effort = 1}};
  free_half_in_use(pool, a_);
  auto* const large = pool.allocate(a_, 16_MiB);
  EXPECT_EQ(pool.statistics().reserved, 32_MiB);
  pool.deallocate(a_, large, 16_MiB);
  free_rest(pool, a_);
}

TEST_F(own_work_wait, does_not_keep_the_caller_from_other_streams) {
  gpumem::pool_resource pool{device_, {.effort = 1}};
  auto* const of_b = pool.allocate(b_, 4_MiB);
  free_half_in_use(pool, a_);
  work_on(b_, of_b);
  pool.deallocate(b_, of_b, 4_MiB);
  auto* const large = pool.allocate(a_, 16_MiB);
  EXPECT_EQ(pool.statistics().reserved, 36_MiB + 16_MiB);
  pool.deallocate(a_, large, 16_MiB);
  free_rest(pool, a_);
}

TEST_F(own_work_wait, is_not_for_coroutines) {
  gpumem::pool_resource pool{device_, {.effort = 1}};
  free_half_in_use(pool, a_);
  {
    auto const large = gpumem::sync_wait(pool.acquire(a_, 16_MiB));
    EXPECT_EQ(pool.statistics().reserved, 32_MiB + 16_MiB);
  }
  free_rest(pool, a_);
}

TEST_F(own_work_wait, is_not_made_without_effort) {
  gpumem::pool_resource pool{device_, {.effort = 0}};
  free_half_in_use(pool, a_);
  auto* const large = pool.allocate(a_, 16_MiB);
  EXPECT_EQ(pool.statistics().reserved, 32_MiB + 16_MiB);
  pool.deallocate(a_, large, 16_MiB);
  free_rest(pool, a_);
}

// Too few bytes are free in whole pages: a wait would give nothing.
TEST_F(own_work_wait, is_not_made_if_no_page_is_free) {
  gpumem::pool_resource pool{device_, {.effort = 1}};
  std::array<void*, 8> small{};
  for (auto& block : small) block = pool.allocate(a_, 1_MiB);
  for (std::size_t i = 0; i < small.size(); i += 2) {
    for (int n = 0; n < 2000; ++n) simulator::work(a_, {simulator::write(small[i], 1_MiB)});
    pool.deallocate(a_, small[i], 1_MiB);
  }
  auto* const large = pool.allocate(a_, 4_MiB);
  EXPECT_GT(pool.statistics().reserved, 8_MiB);
  EXPECT_EQ(gpumem::driver_api::driver().stream_query(a_.get()), CUDA_ERROR_NOT_READY) << "the request did not wait";
  pool.deallocate(a_, large, 4_MiB);
  for (std::size_t i = 1; i < small.size(); i += 2) pool.deallocate(a_, small[i], 1_MiB);
}

} // namespace
