// Thrust on a real device over gpumem's resources; skipped without one.
// SPDX-License-Identifier: Apache-2.0
#include "thrust_device.hpp"

#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

class thrust_device : public testing::Test {
protected:
  void SetUp() override {
    if (!gpumem::simulator::available_real_device()) GTEST_SKIP() << "there is no device";
  }
};

using named_resources = std::vector<std::pair<std::string, gpumem::any_pool>>;

// Adds a resource that the device and the driver may not support; prints that.
template <class Resource> void add_where_it_exists(named_resources& all, char const* name) try {
  all.emplace_back(name, gpumem::any_pool{Resource{}});
} catch (gpumem::cuda_error const& e) { std::cout << "not here: " << e.what() << '\n'; }

// Sources, pools over them, and an adaptor over one, by name. Driver pools of pinned memory are left out: Thrust, and
// the copies of these tests, name the direction of a copy, and the runtime refuses that for such memory (driver 580).
named_resources resources() {
  gpumem::cuda_resource const cuda;
  named_resources all{
      {"cuda", gpumem::any_pool{cuda}},
      {"managed", gpumem::any_pool{gpumem::managed_resource{}}},
      {"pinned", gpumem::any_pool{gpumem::pinned_resource{}}},
      {"async", gpumem::any_pool{gpumem::async_resource{}}},
      {"default driver pool", gpumem::any_pool{gpumem::async_resource_view{}}},
      {"pool", gpumem::any_pool{gpumem::pool_resource{cuda}}},
      {"pool over async", gpumem::any_pool{gpumem::pool_resource{gpumem::async_resource{}}}},
      {"pool over managed", gpumem::any_pool{gpumem::pool_resource{gpumem::managed_resource{}}}},
      {"pool over pinned", gpumem::any_pool{gpumem::pool_resource{gpumem::pinned_resource{}}}},
      {"statistics over a pool", gpumem::any_pool{gpumem::statistics_adaptor{gpumem::pool_resource{cuda}}}}};
  add_where_it_exists<gpumem::async_managed_resource>(all, "async managed");
  add_where_it_exists<gpumem::async_managed_resource_view>(all, "default driver pool of managed memory");
  return all;
}

TEST_F(thrust_device, algorithms_give_the_same_results_as_on_the_host) {
  gpumem::device_guard const current{gpumem::device{0}};
  gpumem::stream own{gpumem::device{0}};
  CUstream raw = nullptr;
  ASSERT_EQ(gpumem::driver_api::driver().stream_create(&raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (auto const& [name, resource] : resources()) {
    for (gpumem::stream_ref const stream : {gpumem::stream_ref{own}, gpumem::stream_ref{raw}}) {
      for (bool const waits : {true, false}) {
        EXPECT_STREQ(algorithm_that_differs(stream, resource, 1'000'000, waits), "")
            << name << (waits ? "" : ", no-sync") << (stream.get() == raw ? ", raw handle" : "");
      }
    }
  }
  EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(raw), CUDA_SUCCESS);
}

TEST_F(thrust_device, temporary_memory_is_allocated_and_freed_in_the_resource) {
  gpumem::statistics_adaptor counted{gpumem::cuda_resource{}};
  gpumem::stream stream{gpumem::device{0}};
  EXPECT_STREQ(algorithm_that_differs(stream, gpumem::any_pool{counted}, 1'000'000, true), "");
  EXPECT_EQ(counted.counters().bytes.value, 0);
  EXPECT_GT(counted.counters().allocations.total, 4) << "the algorithms took no temporary memory";
}

TEST_F(thrust_device, cub_accepts_a_resource_in_its_environment) {
  gpumem::stream stream{gpumem::device{0}};
  for (auto const& [name, resource] : resources()) {
    auto const sums = cub_on_device(stream, resource, 1'000'000);
    EXPECT_EQ(sums.sum, 2'000'000) << name;
    EXPECT_EQ(sums.last_running_sum, 2'000'000) << name;
    EXPECT_EQ(buffer_on_device(stream, resource, 1'000'000), 2'000'000) << name;
  }
}

TEST_F(thrust_device, reduce_does_not_wait) {
  gpumem::stream stream{gpumem::device{0}};
  EXPECT_EQ(sum_on_device(stream, gpumem::any_pool{gpumem::cuda_resource{}}, 1'000'000), 2'000'000);
}

TEST_F(thrust_device, several_threads_use_their_own_streams) {
  for (auto const& [name, resource] : resources()) {
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i <= 4; ++i) {
      threads.emplace_back([&resource, &name, i] {
        gpumem::stream stream{gpumem::device{0}};
        for (int round = 0; round < 10; ++round) {
          EXPECT_STREQ(algorithm_that_differs(stream, resource, i * 10'000, round % 2), "") << name;
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST_F(thrust_device, request_larger_than_the_device_throws_and_the_next_succeeds) {
  gpumem::stream stream{gpumem::device{0}};
  gpumem::any_pool const pool{gpumem::cuda_resource{}};
  EXPECT_THROW((void)sum_on_device(stream, pool, gpumem::device{0}.memory().total), gpumem::out_of_memory);
  EXPECT_EQ(sum_on_device(stream, pool, 1000), 2000);
}

} // namespace
