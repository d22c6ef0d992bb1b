// Destroyed streams on a real device: their memory is reused, but not before their work is complete, and calls during a
// capture leave it valid.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t made = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&made, flags), cudaSuccess);
  return made;
}

// Returns the resident memory of the process in bytes.
std::ptrdiff_t host_bytes() {
  std::ifstream told{"/proc/self/statm"};
  std::ptrdiff_t all = 0, resident = 0;
  told >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

} // namespace

class dead_streams_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return;
    void* memory = nullptr;
    ASSERT_EQ(cudaHostAlloc(&memory, sizeof *flag_, cudaHostAllocMapped), cudaSuccess);
    flag_ = static_cast<unsigned volatile*>(memory);
    *flag_ = 0;
  }
  void TearDown() override {
    device_test::TearDown();
    if (flag_) EXPECT_EQ(cudaFreeHost(const_cast<unsigned*>(flag_)), cudaSuccess);
  }
  // One request: a block that is stamped and checked on its stream.
  template <class Pool> void serve(Pool& pool, cudaStream_t on, std::size_t bytes, std::uint64_t value) {
    auto* const p = pool.allocate(stream_ref{on}, bytes);
    stamp::write(on, p, bytes, value);
    stamp::check(on, p, bytes, value, wrong_);
    pool.deallocate(stream_ref{on}, p, bytes);
  }
  unsigned volatile* flag_ = nullptr;
};

TEST_F(dead_streams_on_device, new_stream_for_each_request_reserves_at_most_two_requests) {
  pool_resource pool{device{0}};
  for (std::uint64_t i = 0; i < 400; ++i) {
    auto const on = make_stream();
    serve(pool, on, 256 * mib, i);
    EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(on), cudaSuccess);
  }
  EXPECT_LE(pool.statistics().peak_reserved, 512 * mib);
}

// Streams that are destroyed with pending work: no other stream gets their memory before that is complete.
TEST_F(dead_streams_on_device, memory_of_destroyed_streams_with_running_work_is_not_reused) {
  pool_resource pool{device{0}, {.limit = 512 * mib}};
  for (std::uint64_t i = 0; i < 2000; ++i) {
    auto const on = make_stream(i % 2 ? cudaStreamNonBlocking : cudaStreamDefault);
    for (std::uint64_t k = 0; k < 1 + i % 4; ++k) {
      auto const bytes = (1 + (i * 7 + k) % 13) * mib;
      auto const p = pool.try_allocate(stream_ref{on}, bytes);
      if (!p) continue;
      stamp::write(on, *p, bytes, i);
      stamp::check(on, *p, bytes, i, wrong_, 200);
      pool.deallocate(stream_ref{on}, *p, bytes);
    }
    EXPECT_EQ(cudaStreamDestroy(on), cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  stream last{device{0}};
  EXPECT_TRUE(pool.try_allocate(last, 400 * mib)) << "all its work is complete";
}

TEST_F(dead_streams_on_device, requests_at_the_limit_are_granted_beside_a_long_kernel) {
  pool_resource pool{device{0}, {.limit = 1024 * mib}};
  auto const busy = make_stream();
  stamp::wait_for(busy, flag_);
  double longest = 0;
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto const on = make_stream();
    auto const begin = std::chrono::steady_clock::now();
    auto const p = pool.try_allocate(stream_ref{on}, 600 * mib);
    std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - begin;
    if (i > 0) longest = std::max(longest, took.count()); // the first one maps the pages
    EXPECT_TRUE(p) << "request " << i;
    if (p) {
      stamp::write(on, *p, 600 * mib, i);
      stamp::check(on, *p, 600 * mib, i, wrong_);
      pool.deallocate(stream_ref{on}, *p, 600 * mib);
    }
    EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(on), cudaSuccess);
  }
  RecordProperty("longest_request_ms", std::to_string(longest));
  EXPECT_LE(longest, 10);
  *flag_ = 1;
  EXPECT_EQ(cudaStreamSynchronize(busy), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(busy), cudaSuccess);
}

TEST_F(dead_streams_on_device, ended_threads_leave_no_memory_of_their_default_streams_behind) {
  for (auto const handle : {cudaStream_t{}, cudaStreamPerThread}) {
    pool_resource pool{device{0}};
    for (std::uint64_t i = 0; i < 200; ++i) {
      std::thread{[&] {
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        serve(pool, handle, 256 * mib, i);
      }}.join();
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    EXPECT_LE(pool.statistics().peak_reserved, 512 * mib);
  }
}

// A kernel on x waits for one on y, both on blocking streams: an event on the legacy stream would stand between them.
TEST_F(dead_streams_on_device, frees_on_handle_0_do_not_order_other_streams) {
  pool_resource pool{device{0}};
  stream other{device{0}};
  auto const x = make_stream(cudaStreamDefault), y = make_stream(cudaStreamDefault);
  stream_ref const null{cudaStream_t{}};
  for (auto const bytes : {64 * mib, 128 * mib}) {
    pool.deallocate(null, pool.allocate(null, bytes), bytes);
    pool.deallocate(other, pool.allocate(other, bytes), bytes);
  }
  stamp::wait_for(x, flag_);
  for (std::size_t i = 0; i < 70; ++i) {
    auto const bytes = 64 * mib + i * 4096;
    pool.deallocate(null, pool.allocate(null, bytes), bytes);
  }
  stamp::raise(y, flag_);
  auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{2};
  while (cudaStreamQuery(y) != cudaSuccess && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(cudaStreamQuery(y), cudaSuccess) << "y was held back";
  *flag_ = 1;
  for (auto const each : {x, y}) {
    EXPECT_EQ(cudaStreamSynchronize(each), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(each), cudaSuccess);
  }
}

TEST_F(dead_streams_on_device, capture_survives_a_pool_that_runs_out_of_memory_and_ends) {
  for (auto const mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    for (auto const flags : {cudaStreamNonBlocking, cudaStreamDefault}) {
      auto const captured = make_stream(flags), on = make_stream();
      std::uint64_t* target = nullptr;
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&target), 4096), cudaSuccess);
      std::optional<pool_resource<cuda_resource>> pool{std::in_place, device{0}, pool_options{.limit = 64 * mib}};
      stream own{device{0}};
      ASSERT_EQ(cudaStreamBeginCapture(captured, mode), cudaSuccess);
      stamp::write(captured, target, 4096, 5);
      std::thread{[&] {
        device_guard const here{device{0}};
        for (auto const each : {stream_ref{on}, stream_ref{own}, stream_ref{CU_STREAM_PER_THREAD}}) {
          auto* const p = pool->allocate(each, 60 * mib);
          stamp::write(each.get(), p, 60 * mib, 3, 1000);
          EXPECT_THROW((void)pool->allocate(each, 60 * mib), out_of_memory);
          pool->deallocate(each, p, 60 * mib);
          EXPECT_TRUE(pool->synchronize(std::chrono::seconds{10}));
          pool->trim();
        }
        pool.reset();
      }}.join();
      stamp::write(captured, target, 4096, 7);
      cudaGraph_t graph = nullptr;
      ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess) << "the capture was disturbed";
      cudaGraphExec_t executable = nullptr;
      ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
      EXPECT_EQ(cudaGraphLaunch(executable, on), cudaSuccess);
      stamp::check(on, target, 4096, 7, wrong_);
      EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
      EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      EXPECT_EQ(cudaFree(target), cudaSuccess);
      for (auto const each : {captured, on}) EXPECT_EQ(cudaStreamDestroy(each), cudaSuccess);
    }
  }
}

// Prints driver calls, time and host memory of one request after many streams.
TEST_F(dead_streams_on_device, request_takes_equally_long_after_a_million_streams) {
  pool_resource pool{device{0}};
  auto const of = [&](int streams) {
    auto const calls = driver_api::driver_calls();
    auto const before = host_bytes();
    auto const begin = std::chrono::steady_clock::now();
    for (int i = 0; i < streams; ++i) {
      auto const on = make_stream();
      pool.deallocate(stream_ref{on}, pool.allocate(stream_ref{on}, 4096), 4096);
      EXPECT_EQ(cudaStreamSynchronize(on), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(on), cudaSuccess);
    }
    std::chrono::duration<double, std::micro> const took = std::chrono::steady_clock::now() - begin;
    std::printf("%7d streams: %.2f us and %.2f driver calls per stream, %.2f MiB of host memory\n", streams,
                took.count() / streams, static_cast<double>(driver_api::driver_calls() - calls) / streams,
                static_cast<double>(host_bytes() - before) / static_cast<double>(mib));
    return (driver_api::driver_calls() - calls) / static_cast<std::uint64_t>(streams);
  };
  of(100);
  auto const first = of(1000);
  auto const before = host_bytes();
  of(1'000'000);
  EXPECT_LE(of(1000), first);
  EXPECT_LE(host_bytes() - before, static_cast<std::ptrdiff_t>(8 * mib));
}

TEST_F(dead_streams_on_device, host_memory_stays_flat_over_many_threads) {
  pool_resource pool{device{0}};
  auto const of = [&](cudaStream_t on, int threads) {
    auto const before = host_bytes();
    for (int i = 0; i < threads; ++i) {
      std::thread{[&] {
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        pool.deallocate(stream_ref{on}, pool.allocate(stream_ref{on}, 4096), 4096);
      }}.join();
    }
    return host_bytes() - before;
  };
  for (auto const on : {cudaStream_t{}, cudaStreamPerThread}) {
    of(on, 500);
    auto const more = of(on, 50'000);
    std::printf("50000 threads: %.2f MiB of host memory\n", static_cast<double>(more) / static_cast<double>(mib));
    EXPECT_LE(more, static_cast<std::ptrdiff_t>(8 * mib));
  }
}

// Pools of jobs that end while their streams live, of which the host has waited for none.
TEST_F(dead_streams_on_device, closed_pools_keep_64_mib) {
  auto const used = [] {
    auto const memory = device{0}.memory();
    return static_cast<std::ptrdiff_t>(memory.total - memory.free);
  };
  std::vector<stream_ref> streams;
  std::ptrdiff_t before = 0;
  for (int job = 0; job < 200; ++job) {
    streams.push_back(stream_ref{make_stream()});
    if (job == 8) before = used(); // the first jobs load what later ones share
    pool_resource pool{device{0}};
    for (std::size_t i = 0; i < 100; ++i) {
      auto const bytes = i * 7919 * 64 % (3 * mib) + 1;
      auto* const block = pool.allocate(streams.back(), bytes);
      EXPECT_EQ(cudaMemsetAsync(block, job, bytes, streams.back().get()), cudaSuccess);
      pool.deallocate(streams.back(), block, bytes);
    }
  }
  auto const kept = used() - before;
  std::printf("200 closed pools: %td MiB more are used\n", kept / static_cast<std::ptrdiff_t>(mib));
  EXPECT_LE(kept, static_cast<std::ptrdiff_t>(128 * mib)) << "64 MiB, and what the driver keeps for 200 streams";
  for (auto each : streams) {
    EXPECT_EQ(cudaStreamSynchronize(each.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(each.get()), cudaSuccess);
  }
}
