// Driver pools, managed and pinned memory on a real device: memory is usable, not shared, stream-ordered, and is
// returned.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// Makes the resource. Returns null and prints the error if the device or the driver does not support it.
template <class Pool, class... Arguments> std::unique_ptr<Pool> made(Arguments... arguments) try {
  return std::make_unique<Pool>(arguments...);
} catch (cuda_error const& e) {
  std::cout << "not here: " << e.what() << '\n';
  return nullptr;
}

class driver_pools_on_device : public device_test {
protected:
  /// Writes a stamp, checks it, and frees after both.
  template <class Source> void use(Source& source, stream& on, std::size_t bytes, std::uint64_t value) {
    auto* const block = source.allocate(on, bytes);
    stamp::write(on.get(), block, bytes, value, 20);
    stamp::check(on.get(), block, bytes, value, wrong_, 20);
    source.deallocate(on, block, bytes);
  }
  /// The host writes to each block directly after its allocation, then the device does.
  template <class Source> void touch_by_host(Source& source) {
    stream on{device{0}};
    for (std::uint64_t i = 0; i < 20; ++i) {
      auto* const block = static_cast<std::uint64_t*>(source.allocate(on, mib));
      block[0] = i;
      stamp::write(on.get(), block, mib, i, 100);
      stamp::check(on.get(), block, mib, i, wrong_);
      source.deallocate(on, block, mib);
    }
  }
};

} // namespace

TEST_F(driver_pools_on_device, async_resource_reuses_across_streams_in_order) {
  async_resource pool;
  std::vector<stream> streams;
  for (int i = 0; i < 4; ++i) streams.emplace_back(device{0});
  for (std::uint64_t i = 0; i < 400; ++i) use(pool, streams[i % 4], std::size_t{1} << (10 + i % 14), i);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(driver_pools_on_device, threads_on_streams_of_their_own_never_share_a_block) {
  async_resource pool;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      stream on{device{0}};
      for (std::uint64_t i = 0; i < 100; ++i) use(pool, on, 1 << 16, t << 32 | i);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(driver_pools_on_device, options_reach_the_driver) {
  async_resource pool{device{0}, {.initial_size = 64 * mib, .limit = 256 * mib, .reuse_completed = false}};
  EXPECT_GE(pool.usage().reserved, 64 * mib);
  EXPECT_EQ(pool.usage().used, 0u);
  int completed = 1;
  driver_api::check(
      driver_api::driver().mem_pool_get_attribute(pool.handle(), CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &completed),
      "get");
  EXPECT_EQ(completed, 0);
  stream on{device{0}};
  EXPECT_EQ(pool.try_allocate(on, 512 * mib).error().reason, outcome::too_large);
  auto* const most = pool.allocate(on, 192 * mib);
  EXPECT_EQ(pool.try_allocate(on, 128 * mib).error().reason, outcome::exhausted);
  pool.deallocate(on, most, 192 * mib);
  on.synchronize();
  EXPECT_GT(pool.trim(), 0u);
  EXPECT_EQ(pool.usage().reserved, 0u);
}

TEST_F(driver_pools_on_device, alignments_up_to_a_mebibyte_are_honoured) {
  async_resource pool;
  stream on{device{0}};
  for (std::size_t alignment = 1; alignment <= mib; alignment *= 2) {
    auto* const block = pool.allocate(on, 1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u);
    stamp::write(on.get(), block, 1000, alignment);
    stamp::check(on.get(), block, 1000, alignment, wrong_);
    pool.deallocate(on, block, 1000, alignment);
  }
}

TEST_F(driver_pools_on_device, block_is_freed_after_its_foreign_stream) {
  async_resource pool;
  cudaStream_t foreign = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), cudaSuccess);
  for (std::uint64_t i = 0; i < 200; ++i) {
    auto block = pool.acquire(stream_ref{foreign}, mib).wait();
    stamp::write(foreign, block.data(), mib, i, 50);
    stamp::check(foreign, block.data(), mib, i, wrong_);
  }
  auto last = pool.acquire(stream_ref{foreign}, mib).wait();
  stamp::write(foreign, last.data(), mib, 1, 200);
  last.reset();
  ASSERT_EQ(cudaStreamDestroy(foreign), cudaSuccess);
  stream on{device{0}};
  use(pool, on, mib, 7);
}

TEST_F(driver_pools_on_device, default_streams_can_be_used) {
  async_resource pool;
  for (auto const handle : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    auto block = pool.acquire(stream_ref{handle}, mib).wait();
    stamp::write(handle, block.data(), mib, 3, 100);
    stamp::check(handle, block.data(), mib, 3, wrong_);
  }
}

// While other threads make pools or wait, driver 580 crashes if a pool is destroyed before the host has synchronized
// with the streams that freed to it.
TEST_F(driver_pools_on_device, pools_are_created_and_destroyed_during_waits) {
  std::atomic<bool> stop{false};
  std::thread other{[&] {
    stream on{device{0}};
    while (!stop) {
      cuda_resource source;
      auto* const block = source.allocate(on, 8);
      stamp::write(on.get(), block, 8, 1, 20);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      source.deallocate(on, block, 8);
    }
  }};
  stream own{device{0}};
  cudaStream_t raw = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), cudaSuccess);
  for (std::uint64_t round = 0; round < 200; ++round) {
    async_resource pool;
    for (stream_ref const on : {stream_ref{own}, stream_ref{raw}, stream_ref{cudaStream_t{}},
                                stream_ref{cudaStreamLegacy}, stream_ref{cudaStreamPerThread}}) {
      auto block = pool.acquire(on, mib).wait();
      stamp::write(on.get(), block.data(), mib, round, 20);
      stamp::check(on.get(), block.data(), mib, round, wrong_);
      block.reset(on);
    }
  }
  stop = true;
  other.join();
  EXPECT_EQ(cudaStreamDestroy(raw), cudaSuccess);
}

TEST_F(driver_pools_on_device, view_does_not_change_the_default_pool) {
  async_resource_view view;
  auto const before = view.release_threshold();
  stream on{device{0}};
  use(view, on, mib, 5);
  EXPECT_EQ(async_resource_view{}.release_threshold(), before);
  EXPECT_TRUE(view == (async_resource_view{view.handle(), device{0}}));
}

TEST_F(driver_pools_on_device, pool_works_over_a_driver_pool_and_over_pinned_memory) {
  pool_resource over_async{async_resource{}};
  pool_resource over_pinned{pinned_resource{}};
  std::vector<stream> streams;
  for (int i = 0; i < 3; ++i) streams.emplace_back(device{0});
  for (std::uint64_t i = 0; i < 300; ++i) {
    use(over_async, streams[i % 3], std::size_t{1} << (10 + i % 12), i);
    use(over_pinned, streams[i % 3], std::size_t{1} << (10 + i % 8), i);
  }
}

TEST_F(driver_pools_on_device, host_can_use_managed_memory_at_once) {
  managed_resource source;
  touch_by_host(source);
}

TEST_F(driver_pools_on_device, host_can_use_pinned_memory_at_once) {
  pinned_resource source;
  touch_by_host(source);
}

TEST_F(driver_pools_on_device, host_can_use_memory_of_a_pinned_pool_at_once) {
  if (auto const pool = made<async_pinned_resource>()) touch_by_host(*pool);
}

TEST_F(driver_pools_on_device, host_can_use_memory_of_a_managed_pool_at_once) {
  if (auto const pool = made<async_managed_resource>()) touch_by_host(*pool);
}

TEST_F(driver_pools_on_device, host_can_use_memory_of_the_default_managed_pool_at_once) {
  if (auto const view = made<async_managed_resource_view>()) touch_by_host(*view);
}

TEST_F(driver_pools_on_device, host_can_use_memory_of_the_default_pinned_pool_at_once) {
  if (auto const view = made<async_pinned_resource_view>()) touch_by_host(*view);
}

TEST_F(driver_pools_on_device, host_gets_memory_after_its_previous_work) {
  async_resource pool{device{0}, {.limit = 64 * mib}};
  stream on{device{0}}, other{device{0}};
  auto* const block = pool.allocate(on, 48 * mib);
  stamp::write(on.get(), block, 48 * mib, 1, 2000);
  stamp::check(on.get(), block, 48 * mib, 1, wrong_, 2000);
  pool.deallocate(on, block, 48 * mib);
  auto* const next = pool.allocate_sync(48 * mib);
  stamp::write(other.get(), next, 48 * mib, 2);
  stamp::check(other.get(), next, 48 * mib, 2, wrong_);
  other.synchronize();
  pool.deallocate_sync(next, 48 * mib);
}
