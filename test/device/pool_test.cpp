// The pool on a real device: stamped blocks are reused on one stream, across streams and across threads.
// SPDX-License-Identifier: Apache-2.0
#include "churn.hpp"
#include "device_test.hpp"

#include <cstdint>
#include <thread>
#include <vector>

import gpumem;

using namespace gpumem;
using gpumem_test::churn;
using gpumem_test::make_streams;

class pool_on_device : public device_test {};

TEST_F(pool_on_device, one_thread_uses_eight_streams) {
  pool_resource pool{cuda_resource{device{0}}};
  auto streams = make_streams(8);
  churn{pool, streams, wrong_, 1}.run(20'000);
  auto const f = pool.statistics();
  EXPECT_EQ(f.live, 0u);
  EXPECT_GT(f.reuse_same_stream, 0u);
  EXPECT_GT(f.reuse_ordered + f.reuse_completed + f.reuse_waited, 0u) << "nothing was reused across streams";
}

TEST_F(pool_on_device, streams_reuse_each_others_memory_under_a_limit) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = std::size_t{48} << 20}};
  auto streams = make_streams(8);
  churn{pool, streams, wrong_, 2}.run(20'000);
  auto const f = pool.statistics();
  EXPECT_EQ(f.live, 0u);
  EXPECT_LE(f.peak_reserved, std::size_t{48} << 20);
}

TEST_F(pool_on_device, sixteen_threads_use_their_own_streams) {
  pool_resource pool{cuda_resource{device{0}}};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      auto streams = make_streams(2);
      churn{pool, streams, wrong_, 100 + t}.run(3'000);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_on_device, four_threads_share_four_streams) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = std::size_t{256} << 20}};
  auto streams = make_streams(4);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { churn{pool, streams, wrong_, 200 + t}.run(5'000); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_on_device, recycled_foreign_handles_can_be_used) {
  pool_resource pool{cuda_resource{device{0}}};
  for (std::uint64_t round = 0; round < 200; ++round) {
    cudaStream_t raw = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), cudaSuccess);
    auto* const data = pool.allocate(stream_ref{raw}, 1 << 20);
    stamp::write(raw, data, 1 << 20, round, 50);
    stamp::check(raw, data, 1 << 20, round, wrong_, 50);
    pool.deallocate(stream_ref{raw}, data, 1 << 20);
    ASSERT_EQ(cudaStreamDestroy(raw), cudaSuccess);
  }
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(pool_on_device, two_threads_use_their_default_streams) {
  pool_resource pool{cuda_resource{device{0}}};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
      for (std::uint64_t i = 0; i < 200; ++i) {
        auto const on = i % 2 ? cudaStreamPerThread : cudaStream_t{};
        auto* const data = pool.allocate(stream_ref{on}, 1 << 18);
        stamp::write(on, data, 1 << 18, t << 32 | i, 20);
        stamp::check(on, data, 1 << 18, t << 32 | i, wrong_, 20);
        pool.deallocate(stream_ref{on}, data, 1 << 18);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(pool_on_device, persistent_kernel_of_another_stream_blocks_no_request) {
  pool_resource pool{cuda_resource{device{0}}, {.limit = std::size_t{8} << 20}};
  int least = 0, greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  // b has another priority: the device maps streams of one priority to a few queues. A kernel would wait forever for a
  // kernel behind it in the same queue.
  stream a{device{0}}, b{device{0}, greatest};
  unsigned* flag = nullptr;
  ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&flag), sizeof *flag, cudaMemAttachGlobal), cudaSuccess);
  *flag = 0;
  auto* const first = pool.allocate(a, std::size_t{8} << 20);
  stamp::write(a.get(), first, 8 << 20, 1);
  pool.deallocate(a, first, std::size_t{8} << 20);
  stamp::wait_for(a.get(), flag); // runs until b's kernel has run
  // The whole limit was freed on a. Whatever the pool returns, work that it adds to b must not wait for the kernel.
  auto const second = pool.try_allocate(b, std::size_t{8} << 20);
  stamp::raise(b.get(), flag);
  b.synchronize();
  a.synchronize();
  if (second) pool.deallocate(b, *second, std::size_t{8} << 20);
  EXPECT_EQ(cudaFree(flag), cudaSuccess);
}

TEST_F(pool_on_device, blocks_outlive_the_last_handle) {
  stream on{device{0}};
  allocation kept;
  {
    pool_resource pool{cuda_resource{device{0}}};
    kept = pool.acquire(on, 1 << 20).wait();
  }
  stamp::write(on.get(), kept.data(), kept.bytes(), 3, 100);
  stamp::check(on.get(), kept.data(), kept.bytes(), 3, wrong_, 100);
}
