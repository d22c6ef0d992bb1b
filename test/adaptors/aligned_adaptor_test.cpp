// aligned_adaptor: which blocks are aligned, over gpumem's resources and over those of other libraries.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

#include "../support/parking_resource.hpp"

namespace {

using namespace gpumem::literals;
using gpumem_test::recording_upstream;

bool is_aligned(void const* p, std::size_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

class aligned : public simulated {
protected:
  gpumem::stream s_{gpumem::device{0}};
};

TEST_F(aligned, only_blocks_from_the_threshold_on_are_aligned) {
  gpumem::pool_resource pool{gpumem::cuda_resource{}};
  gpumem::aligned_adaptor subject{pool, {.alignment = 64_KiB, .threshold = 10_KiB}};
  EXPECT_EQ(subject.alignment(), 64_KiB);
  EXPECT_EQ(subject.threshold(), 10_KiB);
  std::vector<void*> small;
  for (int i = 0; i < 8; ++i) small.push_back(subject.allocate(s_, 10_KiB - 1));
  for (int i = 0; i < 8; ++i) {
    void* const large = subject.allocate(s_, 10_KiB);
    EXPECT_TRUE(is_aligned(large, 64_KiB));
    subject.deallocate(s_, large, 10_KiB);
  }
  EXPECT_FALSE(std::ranges::all_of(small, [](void* p) { return is_aligned(p, 64_KiB); })) << "small ones are too";
  for (auto* const each : small) subject.deallocate(s_, each, 10_KiB - 1);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(aligned, caller_may_ask_for_more) {
  gpumem::aligned_adaptor subject{gpumem::pool_resource{gpumem::cuda_resource{}}, {.alignment = 1_KiB}};
  void* const p = subject.allocate(s_, 100, 1_MiB);
  EXPECT_TRUE(is_aligned(p, 1_MiB));
  subject.deallocate(s_, p, 100, 1_MiB);
  void* const q = subject.allocate_sync(100, 1);
  EXPECT_TRUE(is_aligned(q, 1_KiB));
  subject.deallocate_sync(q, 100, 1);
}

TEST_F(aligned, upstream_of_gpumem_gets_the_size_of_the_caller) {
  gpumem::statistics_adaptor counted{gpumem::cuda_resource{}};
  gpumem::aligned_adaptor subject{counted, {.alignment = 4_KiB}};
  void* const p = subject.allocate(s_, 1000);
  EXPECT_EQ(counted.counters().bytes.value, 1000);
  subject.deallocate(s_, p, 1000);
}

TEST_F(aligned, erased_upstream_of_gpumem_gets_the_size_of_the_caller) {
  gpumem::statistics_adaptor counted{gpumem::cuda_resource{}};
  gpumem::aligned_adaptor subject{gpumem::any_pool{counted}, {.alignment = 4_KiB}};
  void* const p = subject.allocate(s_, 1000);
  EXPECT_TRUE(is_aligned(p, 4_KiB));
  EXPECT_EQ(counted.counters().bytes.value, 1000);
  subject.deallocate(s_, p, 1000);
}

// A resource of another library that aligns to 256 bytes only.
class narrow_upstream : public recording_upstream {
public:
  void* allocate(cuda::stream_ref s, std::size_t bytes, std::size_t alignment = 256) {
    if (alignment > 256) throw std::invalid_argument{"alignment"};
    return static_cast<std::byte*>(recording_upstream::allocate(s, bytes + 256)) + 256;
  }
  void deallocate(cuda::stream_ref s, void* p, std::size_t bytes, std::size_t = 256) noexcept {
    recording_upstream::deallocate(s, static_cast<std::byte*>(p) - 256, bytes + 256);
  }
  void* allocate_sync(std::size_t bytes, std::size_t = 256) {
    return static_cast<std::byte*>(recording_upstream::allocate_sync(bytes + 256)) + 256;
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t = 256) noexcept {
    recording_upstream::deallocate_sync(static_cast<std::byte*>(p) - 256, bytes + 256);
  }
};

TEST_F(aligned, block_of_another_library_is_aligned_inside_a_larger_one) {
  narrow_upstream upstream;
  gpumem::aligned_adaptor subject{upstream, {.alignment = 4_KiB, .threshold = 2_KiB}};
  void* const small = subject.allocate(s_, 2_KiB - 1);
  void* const large = subject.allocate(s_, 2_KiB);
  void* const direct = subject.allocate_sync(2_KiB);
  EXPECT_TRUE(is_aligned(large, 4_KiB) && is_aligned(direct, 4_KiB));
  auto const draws = upstream.state().draws();
  ASSERT_EQ(draws.size(), 3u);
  EXPECT_EQ(draws[0].bytes, 2_KiB - 1 + 256);
  EXPECT_EQ(draws[1].bytes, 2_KiB + (4_KiB - 256) + 256);
  auto const end = static_cast<std::byte*>(draws[1].pointer) + draws[1].bytes;
  EXPECT_LE(static_cast<std::byte*>(large) + 2_KiB, end) << "the block leaves the one around it";
  subject.deallocate(s_, small, 2_KiB - 1);
  subject.deallocate(s_, large, 2_KiB);
  subject.deallocate_sync(direct, 2_KiB);
  auto const returns = upstream.state().returns();
  ASSERT_EQ(returns.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(returns[i].pointer, draws[i].pointer);
    EXPECT_EQ(returns[i].bytes, draws[i].bytes);
  }
}

TEST_F(aligned, block_is_aligned_through_adaptors_over_another_library) {
  narrow_upstream upstream;
  {
    gpumem::aligned_adaptor subject{gpumem::thread_safe_adaptor{upstream}, {.alignment = 8_KiB}};
    gpumem::aligned_adaptor erased{
        gpumem::any_pool{gpumem::statistics_adaptor{gpumem::mr::any_resource<gpumem::mr::device_accessible>{upstream}}},
        {.alignment = 8_KiB}};
    for (int i = 0; i < 8; ++i) {
      auto const one = subject.acquire(s_, 100 + i).wait();
      auto const other = erased.acquire(s_, 100 + i).wait();
      EXPECT_TRUE(is_aligned(one.data(), 8_KiB) && is_aligned(other.data(), 8_KiB));
    }
  }
  EXPECT_EQ(upstream.state().draws().size(), 16u);
  EXPECT_EQ(upstream.state().returns().size(), 16u);
}

TEST_F(aligned, size_that_overflows_is_too_large) {
  gpumem::aligned_adaptor subject{narrow_upstream{}, {.alignment = 1_GiB}};
  auto const result = subject.try_allocate(s_, PTRDIFF_MAX - 1_MiB);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().reason, gpumem::outcome::too_large);
}

TEST_F(aligned, threads_share_the_blocks_of_another_library) {
  narrow_upstream upstream;
  gpumem::aligned_adaptor subject{upstream, {.alignment = 2_KiB}};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      gpumem::device_guard const current{gpumem::device{0}};
      std::mt19937 random{seed};
      std::vector<std::pair<void*, std::size_t>> live;
      for (int i = 0; i < 200; ++i) {
        std::size_t const bytes = 1 + random() % 5000;
        live.emplace_back(subject.allocate_sync(bytes), bytes);
        EXPECT_TRUE(is_aligned(live.back().first, 2_KiB));
        if (random() % 2) continue;
        std::swap(live[random() % live.size()], live.back());
        subject.deallocate_sync(live.back().first, live.back().second);
        live.pop_back();
      }
      for (auto const& [p, bytes] : live) subject.deallocate_sync(p, bytes);
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(upstream.state().draws().size(), upstream.state().returns().size());
}

TEST_F(aligned, request_that_waits_is_aligned) {
  test::parking_resource upstream{8_KiB};
  gpumem::aligned_adaptor subject{upstream, {.alignment = 2_KiB}};
  auto first = subject.acquire(s_, 8_KiB).wait();
  std::thread waiting{[&] {
    auto const second = subject.acquire(s_, 100).wait();
    EXPECT_TRUE(is_aligned(second.data(), 2_KiB));
  }};
  while (upstream.state().parked() == 0) std::this_thread::yield();
  first.reset();
  waiting.join();
}

TEST_F(aligned, options_are_checked) {
  for (std::size_t const alignment : {std::size_t{0}, std::size_t{3}, std::size_t{384}, SIZE_MAX / 2 + 1})
    EXPECT_THROW((gpumem::aligned_adaptor{gpumem::cuda_resource{}, {.alignment = alignment}}), std::invalid_argument);
}

} // namespace
