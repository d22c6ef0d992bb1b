// Work that waits for a pool's memory on a real device. Kernels stamp the blocks and check them later, so that memory
// that is granted too early is found.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t limit = 256 * mib;

class waiting_on_device : public device_test {
protected:
  using pool_type = pool_resource<cuda_resource>;

  // Three parts of a batch; each is checked after the next was granted. Some batches request all parts at once.
  task<> batch(scope<pool_type> work, gpumem::stream& on, std::size_t bytes, std::uint64_t value) {
    std::array<allocation, 3> parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = co_await work.acquire(on, bytes / 10 * std::array{4, 3, 3}[i], {.resume_on = &threads});
      stamp::write(on.get(), parts[i].data(), parts[i].bytes(), value + i);
      stamp::check(on.get(), parts[i].data(), parts[i].bytes(), value + i, wrong_, 200);
      if (value % 2 == 0) co_await completion(on, {latency::balanced, &threads});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      stamp::check(on.get(), parts[i].data(), parts[i].bytes(), value + i, wrong_, 100);
    }
    ++ended;
  }

  task<> pair(pool_type& pool, gpumem::stream& on, gpumem::stream& other, std::size_t bytes, std::uint64_t value) {
    auto const both = co_await pool.acquire_all({{on, bytes}, {other, bytes}}, {.resume_on = &threads});
    for (auto const& each : both) {
      stamp::write(each.stream().get(), each.data(), each.bytes(), value);
      stamp::check(each.stream().get(), each.data(), each.bytes(), value, wrong_, 200);
    }
    ++ended;
  }

  void run(pool_options options) {
    options.limit = limit;
    pool_type pool{device{0}, options};
    std::vector<gpumem::stream> streams;
    for (int i = 0; i < 16; ++i) streams.emplace_back(device{0});
    std::minstd_rand random{7};
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::vector<task<>> all;
      for (std::uint64_t i = 0; i < 64; ++i) {
        auto& on = streams[i % streams.size()];
        auto const bytes = (4 + random() / 64 % 32) * mib + random() / 64 % 4096;
        auto const value = 1 + round * 1000 + i * 4;
        if (i % 8 == 7) {
          all.push_back(pair(pool, on, streams[(i + 5) % streams.size()], bytes, value));
          continue;
        }
        scope work{pool, "batch " + std::to_string(i)};
        all.push_back(with_retry(
            work, [this, work, &on, bytes, value] { return batch(work, on, bytes, value); }, [this] { ++again; },
            &threads));
      }
      sync_wait(when_all(std::move(all)));
    }
    EXPECT_EQ(ended, 4 * 64u);
    auto const f = pool.statistics();
    std::printf("%llu allocations, %llu after waits, %zu restarts\n", static_cast<unsigned long long>(f.allocations),
                static_cast<unsigned long long>(f.reuse_waited), again.load());
    EXPECT_EQ(f.live + f.waiting, 0u);
    EXPECT_LE(f.peak_reserved, limit);
    for (auto& each : streams) each.synchronize();
  }

  thread_pool_executor threads{4};
  std::atomic<std::size_t> ended{0}, again{0};
};

TEST_F(waiting_on_device, request_waits_over_virtual_pages) { run({}); }
TEST_F(waiting_on_device, request_waits_over_chunks) { run({.pages = false}); }
TEST_F(waiting_on_device, request_waits_only_for_complete_memory) { run({.cross_stream = reuse_policy::completed}); }
TEST_F(waiting_on_device, request_waits_in_a_hardened_pool) { run({.hardened = {.enabled = true}}); }

TEST_F(waiting_on_device, request_ends_at_its_deadline) {
  pool_type pool{device{0}, {.limit = limit}};
  gpumem::stream on{device{0}};
  auto const kept = pool.acquire(on, limit / 2).wait();
  auto const begin = gpumem::detail::sync::now();
  auto const late = [&]() -> task<outcome> {
    try {
      auto const block = co_await pool.acquire(on, limit, {.deadline = begin + std::chrono::milliseconds{20}});
      co_return outcome::granted;
    } catch (acquire_error const& e) { co_return e.reason(); }
  };
  EXPECT_EQ(sync_wait(late()), outcome::deadline);
  auto const waited = gpumem::detail::sync::now() - begin;
  EXPECT_GE(waited, std::chrono::milliseconds{20});
  EXPECT_LT(waited, std::chrono::seconds{2});
}

// cuMemFree waits for the kernels of the device, so the pool's chunks go back on the library's thread.
TEST_F(waiting_on_device, deadline_is_kept_while_chunks_wait_for_a_kernel) {
  unsigned* flag = nullptr;
  ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&flag), sizeof *flag, cudaMemAttachGlobal), cudaSuccess);
  *flag = 0;
  pool_type pool{device{0}, {.limit = limit, .pages = false}};
  gpumem::stream busy{device{0}}, on{device{0}};
  {
    std::vector<allocation> chunks;
    for (int i = 0; i < 4; ++i) chunks.push_back(pool.acquire(on, limit / 4).wait());
  }
  on.synchronize();
  stamp::wait_for(busy.get(), flag);
  auto const begin = gpumem::detail::sync::now();
  auto const reason = [&] {
    try {
      auto const block = pool.acquire(on, limit, {.deadline = begin + std::chrono::milliseconds{200}}).wait();
      return outcome::granted;
    } catch (acquire_error const& e) { return e.reason(); }
  }();
  auto const waited = gpumem::detail::sync::now() - begin;
  *const_cast<unsigned volatile*>(flag) = 1;
  EXPECT_LT(waited, std::chrono::milliseconds{600});
  std::printf("ended with %d after %.1f ms\n", static_cast<int>(reason),
              std::chrono::duration<double, std::milli>{waited}.count());
  EXPECT_TRUE(reason == outcome::deadline || reason == outcome::granted);
  busy.synchronize();
  EXPECT_TRUE(pool.acquire(on, limit).wait());
  EXPECT_EQ(cudaFree(flag), cudaSuccess);
}

} // namespace
