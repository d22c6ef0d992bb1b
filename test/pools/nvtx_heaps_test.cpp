// Chunks and blocks of pools as heaps and regions of NVTX, told to a tool that checks memory.
// SPDX-License-Identifier: Apache-2.0
#include "../support/failing_new.hpp"
#include "../support/longest_wait.hpp"
#include "../support/memory_tool.hpp"
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;
using namespace std::chrono_literals;
using test::memory_tool;

class nvtx_heaps : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    tool_.reset();
  }
  void TearDown() override {
    simulated::TearDown();
    for (auto const& fault : tool_.faults()) ADD_FAILURE() << fault;
    expect_no_heaps();
  }
  /// Waits until the library thread has given all chunks back.
  void expect_no_heaps() {
    auto const end = std::chrono::steady_clock::now() + gpumem_test::longest_wait();
    while (!tool_.heaps().empty() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(tool_.heaps().empty());
    EXPECT_TRUE(tool_.regions().empty());
  }

  template <class Pool> void expect_regions(Pool pool) { expect_regions(std::move(pool), stream_); }
  template <class Pool> void expect_regions(Pool pool, gpumem::stream& on) {
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{1001}, 5_MiB}) {
      auto* const a = pool.allocate(on, bytes);
      auto* const b = pool.allocate(on, bytes, 4096);
      auto* const c = pool.allocate_sync(bytes);
      EXPECT_EQ(tool_.region(a), bytes);
      EXPECT_EQ(tool_.region(b), bytes);
      EXPECT_EQ(tool_.region(c), bytes);
      EXPECT_EQ(tool_.regions().size(), 3u);
      EXPECT_GE(tool_.heaps().size(), 1u);
      pool.deallocate(on, a, bytes);
      pool.deallocate(on, b);
      pool.deallocate_sync(c, bytes);
      EXPECT_TRUE(tool_.regions().empty());
    }
  }
  /// Expects that the tool is not told of the pool.
  template <class Pool> void expect_nothing(Pool pool) {
    auto* const block = pool.allocate(stream_, 1000);
    EXPECT_EQ(tool_.heap_calls(), 0u);
    EXPECT_EQ(tool_.region_calls(), 0u);
    pool.deallocate(stream_, block, 1000);
  }

  memory_tool& tool_ = memory_tool::instance();
  gpumem::device const device_{0};
  gpumem::stream stream_{device_}, other_{device_};
  gpumem::cuda_resource const cuda_{device_};
};

TEST_F(nvtx_heaps, each_block_is_a_region_of_exactly_its_bytes) {
  expect_regions(gpumem::pool_resource{cuda_});
  expect_regions(gpumem::pool_resource{gpumem::managed_resource{device_}});
  expect_regions(gpumem::pool_resource{gpumem::pinned_resource{device_}});
  gpumem::stream there{gpumem::device{1}};
  expect_regions(gpumem::pool_resource{gpumem::cuda_resource{gpumem::device{1}}}, there);
  expect_regions(gpumem::pool_resource{device_, {.pages = false}});
  expect_regions(gpumem::arena_resource{cuda_});
  expect_regions(gpumem::fixed_size_resource{cuda_, {.block_size = 8_MiB, .blocks_per_chunk = 4}});
}

TEST_F(nvtx_heaps, upstream_may_be_wrapped_and_erased) {
  expect_regions(gpumem::pool_resource{gpumem::statistics_adaptor{cuda_}});
  expect_regions(gpumem::pool_resource{gpumem::limiting_adaptor{gpumem::any_pool{cuda_}, {.limit = 1_GiB}}});
}

TEST_F(nvtx_heaps, heap_is_a_whole_chunk_from_its_allocation_to_its_free) {
  gpumem::pool_resource pool{cuda_, {.initial_size = 64_MiB}};
  ASSERT_EQ(tool_.heaps().size(), 1u);
  EXPECT_EQ(tool_.heaps().begin()->second, 64_MiB);
  EXPECT_EQ(pool.reserve(96_MiB), 32_MiB);
  EXPECT_EQ(tool_.heaps().size(), 2u);
  auto* const block = pool.allocate(stream_, 1000);
  EXPECT_GT(pool.trim(), 0u);
  ASSERT_EQ(tool_.heaps().size(), 1u);
  auto const [base, bytes] = *tool_.heaps().begin();
  EXPECT_LT(reinterpret_cast<std::uintptr_t>(block) - base, bytes);
  pool.deallocate(stream_, block, 1000);
  stream_.synchronize();
  pool.trim();
  EXPECT_TRUE(tool_.heaps().empty());
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

TEST_F(nvtx_heaps, reused_memory_is_a_new_region) {
  gpumem::pool_resource pool{cuda_};
  void* last = nullptr;
  for (std::size_t i = 1; i <= 100; ++i) {
    last = pool.allocate(stream_, 100 + i);
    EXPECT_EQ(tool_.region(last), 100 + i);
    pool.deallocate(stream_, last, 100 + i);
    EXPECT_EQ(tool_.region_calls(), i);
  }
  EXPECT_EQ(tool_.heap_calls(), 1u);
}

TEST_F(nvtx_heaps, pages_and_driver_pools_are_no_heaps) {
  expect_nothing(gpumem::pool_resource{device_});
  expect_nothing(gpumem::pool_resource{gpumem::async_resource{device_}});
  expect_nothing(gpumem::pool_resource{gpumem::statistics_adaptor{gpumem::async_resource_view{device_}}});
  expect_nothing(gpumem::pool_resource{gpumem::async_managed_resource{device_}});
  expect_nothing(gpumem::pool_resource{gpumem::host_resource{}});
  gpumem::async_resource driver_pool{device_};
  expect_nothing(gpumem::pool_resource{gpumem::callback_resource{
      device_,
      [=](auto stream, auto bytes, auto alignment) mutable { return driver_pool.allocate(stream, bytes, alignment); },
      [=](auto stream, void* p, auto bytes, auto alignment) mutable {
        driver_pool.deallocate(stream, p, bytes, alignment);
      }}});
}

TEST_F(nvtx_heaps, pools_that_pass_through_and_hardened_pools_make_none) {
  expect_nothing(gpumem::pool_resource{cuda_, {.pass_through = true}});
  expect_nothing(gpumem::pool_resource{cuda_, {.hardened = {.enabled = true}}});
}

TEST_F(nvtx_heaps, blocks_of_a_pool_over_a_pool_are_in_no_second_heap) {
  for (std::size_t const chunk : {32_MiB, 64_MiB}) { // with 64 MiB the chunk of one is the chunk of the other
    expect_no_heaps();
    tool_.reset();
    gpumem::pool_resource inner{cuda_, {.chunk_size = 64_MiB}};
    gpumem::pool_resource outer{inner, {.chunk_size = chunk}};
    auto* const block = outer.allocate(stream_, 1000);
    EXPECT_EQ(tool_.heap_calls(), 1u);
    ASSERT_EQ(tool_.regions().size(), 1u);
    EXPECT_EQ(tool_.regions().begin()->second, chunk);
    auto* const beside = inner.allocate(stream_, 100);
    EXPECT_EQ(tool_.region(beside), 100u);
    inner.deallocate(stream_, beside, 100);
    outer.deallocate(stream_, block, 1000);
    EXPECT_EQ(tool_.regions().size(), 1u) << "the outer pool's free ended the region of the inner one";
  }
}

TEST_F(nvtx_heaps, blocks_of_a_refused_heap_are_no_regions) {
  gpumem::pool_resource pool{cuda_, {.chunk_size = 32_MiB}};
  tool_.refuse_heaps(true);
  auto* const a = pool.allocate(stream_, 20_MiB);
  tool_.refuse_heaps(false);
  EXPECT_EQ(tool_.heap_calls(), 1u);
  auto* const b = pool.allocate(stream_, 20_MiB);
  EXPECT_EQ(tool_.region(a), 0u);
  EXPECT_EQ(tool_.region(b), 20_MiB);
  pool.deallocate(stream_, a, 20_MiB);
  pool.deallocate(stream_, b, 20_MiB);
  stream_.synchronize();
  EXPECT_GE(pool.trim(), 40_MiB) << "both chunks end here, where the tool would see the end of a heap that it refused";
}

TEST_F(nvtx_heaps, region_ends_at_the_free_also_while_work_uses_the_block) {
  gpumem::simulator::checked pool{gpumem::pool_resource{cuda_}};
  auto* const block = pool.allocate(stream_, 1_MiB);
  gpumem::simulator::work(stream_, {gpumem::simulator::write(block, 1_MiB)}, 1ms);
  pool.deallocate(stream_, block, 1_MiB);
  EXPECT_EQ(tool_.region(block), 0u);
}

TEST_F(nvtx_heaps, region_of_a_deferred_free_ends_at_the_free) {
  gpumem::pool_resource pool{cuda_};
  auto* const block = pool.allocate(stream_, 1000);
  stream_.begin_capture();
  pool.deallocate(stream_, block, 1000);
  EXPECT_EQ(tool_.region(block), 0u);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(stream_.end_capture()), CUDA_SUCCESS);
  pool.deallocate(other_, pool.allocate(other_, 1000), 1000);
}

TEST_F(nvtx_heaps, misuse_is_reported_and_ends_no_region) {
  test::recorded_misuse const recorded;
  gpumem::pool_resource pool{cuda_};
  auto* const block = pool.allocate(stream_, 1000);
  pool.deallocate(stream_, block, 2000);
  pool.deallocate(stream_, static_cast<char*>(block) + 256, 1000);
  EXPECT_EQ(tool_.region(block), 1000u);
  pool.deallocate(stream_, block, 1000);
  pool.deallocate(stream_, block, 1000);
  int foreign = 0;
  pool.deallocate(stream_, &foreign);
  ASSERT_EQ(test::seen.size(), 4u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[2].what, gpumem::misuse::kind::double_free);
  EXPECT_EQ(test::seen[3].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(nvtx_heaps, requests_that_wait_get_regions) {
  gpumem::pool_resource pool{cuda_, {.limit = 64_MiB}};
  auto held = pool.acquire(stream_, 48_MiB).wait();
  std::thread waiting{[&] {
    auto const got = pool.acquire(other_, 32_MiB).wait();
    EXPECT_EQ(tool_.region(got.data()), 32_MiB);
  }};
  while (pool.statistics().waiting == 0) std::this_thread::yield();
  held.reset();
  waiting.join();
  EXPECT_FALSE(pool.acquire_all({{stream_, 16_MiB}, {stream_, 56_MiB}}).try_now());
  EXPECT_TRUE(tool_.regions().empty()) << "a part of a refused request kept its region";
}

TEST_F(nvtx_heaps, request_for_several_waits_where_the_free_bytes_lie_in_pieces) {
  gpumem::pool_resource pool{cuda_, {.limit = 48_MiB, .chunk_size = 48_MiB}};
  std::array<gpumem::allocation, 3> held;
  for (auto& each : held) each = pool.acquire(stream_, 16_MiB).wait();
  held[0].reset();
  held[2].reset();
  auto const late = pool.acquire_all({{stream_, 1_MiB}, {stream_, 20_MiB}})
                        .wait_until(gpumem::detail::sync::now() + std::chrono::milliseconds{20});
  EXPECT_EQ(late.error().reason, gpumem::outcome::deadline);
  EXPECT_EQ(tool_.regions().size(), 1u) << "a part of the withdrawn request kept its region";
}

TEST_F(nvtx_heaps, block_that_outlives_its_pool_stays_a_region) {
  std::optional<gpumem::allocation> block;
  {
    gpumem::pool_resource pool{cuda_};
    block.emplace(pool.acquire(stream_, 100).wait());
  }
  EXPECT_EQ(tool_.region(block->data()), 100u);
  block.reset();
}

TEST_F(nvtx_heaps, closed_pool_refuses_requests_and_takes_blocks_back) {
  gpumem::pool_resource pool{cuda_};
  auto* const block = pool.allocate(stream_, 100);
  pool.close();
  EXPECT_EQ(pool.try_allocate(stream_, 1).error().reason, gpumem::outcome::closed);
  pool.deallocate(stream_, block, 100);
}

TEST_F(nvtx_heaps, pool_keeps_its_statistics_and_recorded_uses) {
  gpumem::simulator::checked pool{gpumem::pool_resource{cuda_}};
  auto& plain = pool.upstream_resource();
  for (int i = 0; i < 20; ++i) {
    auto* const block = pool.allocate(stream_, 1_MiB);
    EXPECT_EQ(plain.statistics().live, 1_MiB);
    EXPECT_EQ(plain.find(static_cast<char*>(block) + 5)->bytes, 1_MiB);
    gpumem::event ready{device_};
    ready.record(stream_);
    other_.wait(ready);
    gpumem::simulator::work(other_, {gpumem::simulator::read(block, 1_MiB)}, 20us);
    pool.record_use(block, other_);
    pool.deallocate(stream_, block, 1_MiB);
  }
  EXPECT_EQ(plain.statistics().allocations, 20u);
}

TEST_F(nvtx_heaps, allocation_without_host_memory_for_its_region_leaves_nothing) {
  if (!test::new_can_fail) GTEST_SKIP();
  gpumem::pool_resource pool{cuda_};
  pool.deallocate(stream_, pool.allocate(stream_, 1000), 1000);
  {
    test::failing_new const none;
    auto const got = pool.try_allocate(stream_, 1000);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().reason, gpumem::outcome::exhausted);
  }
  EXPECT_EQ(pool.statistics().live, 0u);
  pool.deallocate(stream_, pool.allocate(stream_, 1000), 1000);
}

TEST_F(nvtx_heaps, threads_share_a_pool) {
  gpumem::simulator::checked pool{gpumem::pool_resource{cuda_, {.release_threshold = 0}}};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      gpumem::stream own{device_};
      std::vector<std::pair<void*, std::size_t>> live;
      for (std::size_t i = 0; i < 300; ++i) {
        auto const bytes = 1 + (i * 7919 + t * 104729) % 200'000;
        live.emplace_back(pool.allocate(own, bytes), bytes);
        EXPECT_EQ(tool_.region(live.back().first), bytes);
        if (i % 3 == 2) {
          for (auto const& [block, size] : live) pool.deallocate(own, block, size);
          live.clear();
        }
      }
      for (auto const& [block, size] : live) pool.deallocate(own, block, size);
    });
  }
  for (auto& thread : threads) thread.join();
}

} // namespace
