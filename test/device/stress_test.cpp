// Sixteen threads that share sixteen streams, under a limit so that streams take each other's memory. Kernels run
// beside them until the other threads have gone on: a wait for such a kernel would never end.
// SPDX-License-Identifier: Apache-2.0
#include "churn.hpp"
#include "device_test.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

import gpumem;

using namespace gpumem;
using gpumem_test::churn;
using gpumem_test::make_streams;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr int thread_count = 16;
constexpr int steps = 3'000;
constexpr auto longest = std::chrono::seconds{20};

class stress_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&flag_), sizeof *flag_, cudaMemAttachGlobal), cudaSuccess);
    // Streams of one priority share a few hardware queues. Work behind a persistent kernel in its queue waits for it,
    // whatever the pool does.
    int least = 0;
    ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest_), cudaSuccess);
  }
  void TearDown() override {
    device_test::TearDown();
    if (flag_) EXPECT_EQ(cudaFree(flag_), cudaSuccess);
  }

  template <class Pool> void meet(Pool pool) {
    auto streams = make_streams(thread_count, greatest_);
    std::vector<std::thread> threads;
    std::atomic<int> running{thread_count};
    std::atomic<std::uint64_t> done{0};
    for (std::uint64_t number = 0; number < thread_count; ++number) {
      threads.emplace_back([&, number] {
        churn one{pool, streams, wrong_, 300 + number, 300};
        for (int i = 0; i < steps; ++i) {
          one.step();
          ++done;
        }
        one.run(0);
        --running;
      });
    }
    auto const kernels = stand_in_the_way(pool, running, done);
    for (auto& each : threads) each.join();
    auto const f = pool.statistics();
    auto const stolen = f.reuse_ordered + f.reuse_completed + f.reuse_waited + f.reuse_after_sync;
    std::printf("%llu allocations, %llu from other streams, %llu after waits; %d persistent kernels\n",
                static_cast<unsigned long long>(f.allocations), static_cast<unsigned long long>(stolen),
                static_cast<unsigned long long>(f.reuse_waited), kernels);
    EXPECT_EQ(f.live, 0u);
    EXPECT_GT(stolen * 100, f.allocations) << "streams rarely took each other's memory";
    EXPECT_GT(kernels, 0);
  }

  static constexpr std::size_t limit = 640 * mib;

private:
  // Repeatedly frees memory on a stream, which then runs a kernel until the threads have made ten steps per thread.
  // Returns the number of these kernels.
  template <class Pool>
  int stand_in_the_way(Pool& pool, std::atomic<int> const& running, std::atomic<std::uint64_t> const& done) {
    stream donor{device{0}}, signal{device{0}, greatest_};
    int kernels = 0;
    for (std::uint64_t value = 1; running > 0; ++value) {
      if (auto const block = pool.try_allocate(donor, 4 * mib)) {
        stamp::write(donor.get(), *block, 4 * mib, value);
        stamp::check(donor.get(), *block, 4 * mib, value, wrong_, 200);
        pool.deallocate(donor, *block, 4 * mib);
      }
      *flag_ = 0;
      stamp::wait_for(donor.get(), flag_);
      auto const until = std::chrono::steady_clock::now() + longest;
      auto const enough = done + 10 * thread_count;
      while (running > 0 && done < enough && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      EXPECT_TRUE(running == 0 || done >= enough) << "the threads wait for a kernel that waits for the threads";
      stamp::raise(signal.get(), flag_);
      donor.synchronize();
      signal.synchronize();
      ++kernels;
    }
    return kernels;
  }

  unsigned* flag_ = nullptr;
  int greatest_ = 0;
};

TEST_F(stress_on_device, threads_read_their_own_bytes_over_virtual_pages) {
  meet(pool_resource{device{0}, {.limit = limit}});
}

TEST_F(stress_on_device, many_threads_read_their_own_bytes_over_few_virtual_pages) {
  meet(pool_resource{device{0}, {.limit = limit, .effort = 1}});
}

TEST_F(stress_on_device, threads_read_their_own_bytes_over_chunks) {
  meet(pool_resource{cuda_resource{device{0}}, {.limit = limit}});
}

} // namespace
