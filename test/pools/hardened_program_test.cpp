// Hardened pools on a device that completes work at random: correct programs must cause no report, with little memory.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "hardened_pool.hpp"

namespace {

using namespace gpumem_test;
using gpumem::hardening_options;
using gpumem::outcome;
using gpumem::pool_resource;

// Allocates and frees random blocks on several streams in stream order. The simulated device checks the pool's own work
// too.
void run_program(std::uint64_t seed, gpumem::device device,
                 simulator::checked<pool_resource<gpumem::cuda_resource>> r) {
  struct block {
    void* data;
    std::size_t bytes, alignment, home;
  };
  std::mt19937_64 random_source{seed};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 3; ++i) streams.emplace_back(device);
  gpumem::event happened{device};
  std::deque<block> live;
  auto const free_one = [&] {
    auto const b = live.front();
    live.pop_front();
    auto* const first = static_cast<char*>(b.data);
    simulator::work(streams[b.home], {simulator::write(b.data, b.bytes)}, {},
                    [=] { std::memset(first, 3, std::min<std::size_t>(b.bytes, 4096)); });
    auto const other = random_source() % streams.size();
    happened.record(streams[b.home]);
    streams[other].wait(happened);
    switch (random_source() % 4) {
    case 0: return r.deallocate(streams[b.home], b.data, b.bytes, b.alignment);
    case 1: return r.deallocate(streams[other], b.data);
    case 2:
      simulator::work(streams[other], {simulator::read(b.data, b.bytes)});
      r.record_use(b.data, streams[other]);
      return r.deallocate(streams[b.home], b.data, b.bytes);
    default: streams[b.home].synchronize(); return r.deallocate_sync(b.data, b.bytes, b.alignment);
    }
  };
  for (int i = 0; i < 300; ++i) {
    auto const bytes = 1 + random_source() % (std::size_t{1} << random_source() % 18);
    auto const alignment = std::size_t{1} << random_source() % 13;
    auto const home = random_source() % streams.size();
    auto const by_host = random_source() % 8 == 0;
    if (auto* const p = by_host ? r.allocate_sync(bytes, alignment) : r.allocate(streams[home], bytes, alignment))
      live.push_back({p, bytes, alignment, home});
    if (live.size() > random_source() % 16) free_one();
  }
  while (!live.empty()) free_one();
}

class hardened_program : public hardened_test {
protected:
  static void SetUpTestSuite() { simulator::load({.devices = 2}); }
};

TEST_F(hardened_program, correct_program_has_no_findings) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    simulator::seed(seed);
    hardening_options const how{
        .enabled = true, .quarantine = seed % 3 * 256 * KiB, .poison = seed % 2 ? 64 * KiB : 512};
    pool_resource<gpumem::cuda_resource> r{device, {.limit = seed % 4 ? 0 : 16 * MiB, .hardened = how}};
    run_program(seed, device, simulator::checked{r});
    ASSERT_TRUE(take_reports().empty()) << "seed " << seed;
    for (auto const& found : simulator::take_findings()) FAIL() << "seed " << seed << ": " << found.text;
    ASSERT_TRUE(synchronized(r));
    auto const f = r.statistics();
    ASSERT_EQ(f.allocations, f.frees);
    ASSERT_EQ(f.quarantined + f.live + f.allocated, 0u) << "seed " << seed;
    ASSERT_EQ(f.free, f.reserved);
  }
}

TEST_F(hardened_program, correct_program_of_several_threads_has_no_findings) {
  pool_resource<gpumem::cuda_resource> r{device, {.hardened = {.enabled = true, .quarantine = 512 * KiB}}};
  simulator::checked const told{r};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { run_program(100 + i, device, told); });
  }
  for (auto& each : threads) each.join();
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(r.statistics().quarantined + r.statistics().live, 0u);
}

TEST_F(hardened_program, full_pool_takes_memory_from_the_quarantine) {
  recording_upstream upstream;
  pool_resource r{upstream, {.limit = 1 * MiB, .hardened = {.enabled = true}}};
  for (int i = 0; i < 50; ++i) {
    auto* const p = r.allocate(s, 900 * KiB);
    simulator::work(s, {simulator::write(p, 900 * KiB)});
    r.deallocate(s, p, 900 * KiB);
  }
  EXPECT_EQ(r.statistics().failures, 0u);
  EXPECT_LE(r.statistics().peak_reserved, 1 * MiB);
  auto* const p = r.allocate(s, 900 * KiB);
  EXPECT_EQ(r.try_allocate(s, 900 * KiB).error().reason, outcome::exhausted);
  EXPECT_EQ(r.try_allocate(s, 900 * KiB).error().requested, 900 * KiB);
  EXPECT_EQ(r.statistics().failures, 2u);
  r.deallocate(s, p, 900 * KiB);
  EXPECT_TRUE(synchronized(r));
}

TEST_F(hardened_program, full_pool_takes_complete_memory_from_the_quarantine_without_a_wait) {
  pool_resource r{gpumem::pinned_resource{}, {.limit = 1 * MiB, .hardened = {.enabled = true}}};
  for (int i = 0; i < 50; ++i) {
    auto const p = r.try_allocate(s, 900 * KiB);
    ASSERT_TRUE(p) << "request " << i;
    r.deallocate(s, *p, 900 * KiB);
    s.synchronize();
  }
}

TEST_F(hardened_program, blocked_stream_does_not_delay_others) {
  static auto* const wait =
      driver_function<CUresult(CUstream, CUdeviceptr, unsigned, unsigned)>("cuStreamWaitValue32_v2");
  auto* const flag = static_cast<unsigned*>(gpumem::pinned_resource{}.allocate_sync(4));
  *flag = 0;
  recording_upstream upstream;
  {
    pool_resource r{upstream, {.initial_size = 512 * KiB, .limit = 512 * KiB, .hardened = {.enabled = true}}};
    wait(s.get(), reinterpret_cast<CUdeviceptr>(flag), 1, 0);
    for (int i = 0; i < 100; ++i) r.deallocate(s, r.allocate(s, 1024), 1024);
    for (int i = 0; i < 20; ++i) r.deallocate(t, r.allocate(t, 200 * KiB), 200 * KiB);
    EXPECT_EQ(r.statistics().failures, 0u);
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
  }
  EXPECT_TRUE(wait_for_releases(upstream.state(), 1));
  gpumem::pinned_resource{}.deallocate_sync(flag, 4);
}

} // namespace
