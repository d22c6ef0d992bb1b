// One region, drawn once and cut into buffers: the guide's own pool, which neither frees nor bears threads, done right.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <array>
#include <cstddef>
#include <thread>
#include <vector>

import gpumem;

namespace {

using namespace gpumem::literals;

class custom_pool : public simulated {
protected:
  static constexpr std::size_t region = 32_MiB;
  gpumem::statistics_adaptor<gpumem::cuda_resource> counted_{gpumem::cuda_resource{gpumem::device{0}}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(custom_pool, allocates_its_region_once) {
  gpumem::pool_resource pool{counted_, {.initial_size = region, .limit = region}};
  for (int i = 0; i < 10; ++i) pool.deallocate(stream_, pool.allocate(stream_, 10_MiB), 10_MiB);
  EXPECT_EQ(counted_.counters().allocations.total, 1);
}

TEST_F(custom_pool, fails_when_it_is_full_and_works_afterwards) {
  gpumem::pool_resource pool{counted_, {.initial_size = region, .limit = region}};
  constexpr std::size_t floats = 10'000'000 * sizeof(float); // more than the region
  EXPECT_FALSE(pool.try_allocate(stream_, floats));
  EXPECT_THROW((void)pool.allocate(stream_, floats), gpumem::out_of_memory);
  pool.deallocate(stream_, pool.allocate(stream_, region), region);
}

TEST_F(custom_pool, memory_keeps_what_is_written) {
  gpumem::pool_resource pool{counted_, {.initial_size = region, .limit = region}};
  gpumem::uninitialized_vector<float> values{stream_, pool, 1'000'000};
  values.set_element_to_zero_async(0);
  values.set_element_async(0, 1.0F);
  EXPECT_EQ(values.front(), 1.0F);
}

TEST_F(custom_pool, can_be_used_by_several_threads) {
  gpumem::pool_resource pool{counted_, {.initial_size = region, .limit = region}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      gpumem::stream own{gpumem::device{0}};
      for (int i = 0; i < 200; ++i) {
        auto* const block = pool.allocate(own, 64_KiB);
        gpumem::simulator::work(own, {gpumem::simulator::write(block, 64_KiB)});
        pool.deallocate(own, block, 64_KiB);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().live, 0u);
}

} // namespace
