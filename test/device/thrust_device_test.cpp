// Thrust on a real device over gpumem's resources; skipped by name where there is none.
// SPDX-License-Identifier: Apache-2.0
#include "thrust_device.hpp"

#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <vector>

import gpumem;

namespace {

class thrust_device : public testing::Test {
protected:
  void SetUp() override {
    if (!gpumem::simulator::available_real_device()) GTEST_SKIP() << "there is no device";
  }
};

TEST_F(thrust_device, sorts_with_memory_of_a_source) {
  gpumem::statistics_adaptor counted{gpumem::cuda_resource{}};
  gpumem::stream stream{gpumem::device{0}};
  EXPECT_TRUE(sorts_on_device(stream, gpumem::any_pool{counted}, 1'000'000));
  EXPECT_EQ(counted.counters().bytes.value, 0);
  EXPECT_GT(counted.counters().allocations.total, 1) << "the sort took no temporary memory";
}

TEST_F(thrust_device, reduces_without_waiting) {
  gpumem::stream stream{gpumem::device{0}};
  EXPECT_EQ(sum_on_device(stream, gpumem::any_pool{gpumem::cuda_resource{}}, 1'000'000), 2'000'000);
}

TEST_F(thrust_device, several_threads_on_streams_of_their_own) {
  gpumem::any_pool const pool{gpumem::cuda_resource{}};
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i <= 4; ++i) {
    threads.emplace_back([&pool, i] {
      gpumem::stream stream{gpumem::device{0}};
      for (int round = 0; round < 10; ++round) EXPECT_TRUE(sorts_on_device(stream, pool, i * 10'000));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(thrust_device, more_than_the_card_has_is_out_of_memory_and_passes) {
  gpumem::stream stream{gpumem::device{0}};
  gpumem::any_pool const pool{gpumem::cuda_resource{}};
  EXPECT_THROW((void)sum_on_device(stream, pool, gpumem::device{0}.memory().total), gpumem::out_of_memory);
  EXPECT_EQ(sum_on_device(stream, pool, 1000), 2000);
}

} // namespace
