// How many addresses pools over pages reserve.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <cuda.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20, GiB = 1024 * MiB, TiB = 1024 * GiB;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

class pool_addresses : public simulated {
protected:
  // Addresses of earlier pools count, so this waits until they are given back.
  void SetUp() override {
    simulated::SetUp();
    simulator::reset({.devices = 2, .capacity = device_bytes});
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (reserved() > 0 && std::chrono::steady_clock::now() < end) simulator::run_until_idle();
  }
  void TearDown() override {
    simulated::TearDown();
    simulator::reset({.devices = 2, .mode = simulator::stepping::manual});
  }
  static std::size_t reserved() { return simulator::report().bytes_reserved; }
  void allocate_and_free(pool& from, std::size_t bytes) {
    from.deallocate(stream, from.allocate(stream, bytes), bytes);
  }

  static constexpr std::size_t device_bytes = 141 * GiB;
  gpumem::stream stream{gpumem::device{0}};
};

TEST_F(pool_addresses, two_thousand_small_pools_fit_a_large_device) {
  std::vector<pool> pools;
  for (int i = 0; i < 2000; ++i) {
    pools.emplace_back(gpumem::device{0});
    allocate_and_free(pools.back(), MiB);
  }
  EXPECT_LE(reserved(), 80 * TiB);
}

TEST_F(pool_addresses, shards_of_many_threads_fit_a_large_device) {
  std::vector<pool> pools;
  for (int i = 0; i < 2; ++i) {
    auto& r = pools.emplace_back(gpumem::device{0}, gpumem::pool_options{.shard_per_thread = true});
    std::barrier together{64};
    std::vector<std::thread> threads;
    for (int t = 0; t < 64; ++t) {
      threads.emplace_back([&] {
        gpumem::device_guard const here{gpumem::device{0}};
        gpumem::stream own{gpumem::device{0}};
        together.arrive_and_wait(); // so that each thread has a slot of its own
        r.deallocate(own, r.allocate(own, MiB), MiB);
        together.arrive_and_wait();
      });
    }
    for (auto& each : threads) each.join();
    EXPECT_GE(r.statistics().shards, 32u);
  }
  EXPECT_LE(reserved(), 5 * TiB);
}

TEST_F(pool_addresses, addresses_follow_the_limit) {
  pool r{gpumem::device{0}, {.limit = GiB / 4}};
  allocate_and_free(r, GiB / 8);
  EXPECT_LE(reserved(), 16 * GiB);
  r.set_limit(60 * GiB);
  allocate_and_free(r, 50 * GiB);
  EXPECT_GE(reserved(), device_bytes);
}

// Where the driver refuses what the pool wants, it asks for half of that.
TEST_F(pool_addresses, pool_takes_fewer_addresses_where_the_driver_refuses) {
  pool r{gpumem::device{0}};
  allocate_and_free(r, MiB);
  auto const before = reserved();
  simulator::fail_call("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  allocate_and_free(r, 100 * GiB);
  EXPECT_EQ(reserved() - before, 4 * device_bytes);
}

TEST_F(pool_addresses, request_for_more_than_any_range_reserves_nothing) {
  pool r{gpumem::device{0}};
  allocate_and_free(r, MiB);
  auto const before = reserved();
  EXPECT_FALSE(r.try_allocate(stream, 64 * TiB));
  EXPECT_EQ(reserved(), before);
}

// Each attempt for the second thread's shard is refused: from 35 GiB down to what the request needs.
TEST_F(pool_addresses, shard_without_addresses_grows_in_the_first_one) {
  pool r{gpumem::device{0}, {.shard_per_thread = true}};
  std::thread{[&] { allocate_and_free(r, MiB); }}.join();
  auto const before = reserved();
  unsigned refused = 0;
  std::thread{[&] {
    gpumem::device_guard const here{gpumem::device{0}};
    gpumem::stream other{gpumem::device{0}};
    for (; refused < 40 && reserved() == before; ++refused) {
      simulator::fail_call("cuMemAddressReserve", 1, CUDA_ERROR_INVALID_VALUE);
      auto* const p = r.try_allocate(other, 64 * MiB).value_or(nullptr);
      EXPECT_TRUE(p);
      if (!p) return;
      r.deallocate(other, p, 64 * MiB);
    }
  }}.join();
  EXPECT_EQ(refused, 40u) << "it has reserved addresses";
}

} // namespace
