// Memory that is given out by an offset, and taken back by a reset.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;
using namespace std::chrono_literals;

class monotonic : public simulated {
protected:
  gpumem::device const device_{0};
  gpumem::stream stream_{device_}, other_{device_};
  gpumem::statistics_adaptor<gpumem::cuda_resource> upstream_{gpumem::cuda_resource{device_}};
};

TEST_F(monotonic, blocks_lie_side_by_side) {
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB}};
  auto* const a = static_cast<char*>(region.allocate(stream_, 100));
  auto* const b = static_cast<char*>(region.allocate(stream_, 1000));
  auto* const c = static_cast<char*>(region.allocate(stream_, 10, 4_KiB));
  EXPECT_EQ(b, a + 256);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c) % 4_KiB, 0u);
  EXPECT_GE(c, b + 1000);
  EXPECT_EQ(region.statistics().live, 1110u);
  EXPECT_EQ(upstream_.counters().allocations.total, 1);
  region.deallocate(stream_, b, 1000);
  EXPECT_GT(static_cast<char*>(region.allocate(stream_, 1)), c) << "a free makes nothing reusable";
  region.reset(stream_);
}

TEST_F(monotonic, reset_frees_all_blocks) {
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB}};
  auto* const first = region.allocate(stream_, 100);
  for (int i = 0; i < 10; ++i) (void)region.allocate(stream_, 10_KiB);
  region.reset(stream_);
  EXPECT_EQ(region.statistics().live, 0u);
  EXPECT_EQ(region.statistics().frees, 11u);
  EXPECT_EQ(region.allocate(stream_, 100), first) << "the same stream gets the region again at once";
  EXPECT_EQ(upstream_.counters().allocations.total, 1);
  region.reset(stream_);
}

TEST_F(monotonic, regions_of_destroyed_streams_go_back) {
  auto const& driver = gpumem::driver_api::driver();
  gpumem::device_guard const here{device_};
  constexpr std::int64_t most = 64 << 20; // what ended pools may keep
  for (int i = 0; i < 20; ++i) {
    gpumem::monotonic_resource region{upstream_, {.region_size = 8_MiB}};
    CUstream raw{};
    ASSERT_EQ(driver.stream_create(&raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    region.deallocate(cuda::stream_ref{raw}, region.allocate(cuda::stream_ref{raw}, 1_KiB), 1_KiB);
    ASSERT_EQ(driver.stream_destroy(raw), CUDA_SUCCESS);
  }
  gpumem::simulator::run_until_idle();
  for (int i = 0; i < 1000 && upstream_.counters().bytes.value > most; ++i) {
    gpumem::monotonic_resource const next{upstream_}; // takes what is complete in ended pools
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_LE(upstream_.counters().bytes.value, most) << "of 160 MiB";
}

TEST_F(monotonic, full_region_is_followed_by_another) {
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB, .limit = 4_MiB}};
  (void)region.allocate(stream_, 700_KiB);
  (void)region.allocate(stream_, 700_KiB);
  EXPECT_EQ(region.statistics().allocations, 2u);
  EXPECT_GE(region.statistics().reserved, 2_MiB);
  EXPECT_EQ(region.try_allocate(stream_, 5_MiB).error().reason, gpumem::outcome::too_large);
  (void)region.allocate(stream_, 2_MiB); // a region of its own
  EXPECT_EQ(region.try_allocate(stream_, 700_KiB).error().reason, gpumem::outcome::exhausted);
  EXPECT_EQ(region.statistics().failures, 2u);
  region.reset(stream_);
  (void)region.allocate(stream_, 4_MiB);
  region.reset(stream_);
}

TEST_F(monotonic, stream_waits_for_the_allocation_of_the_region_on_another) {
  gpumem::async_resource source{device_}; // its memory is valid in the order of the stream alone
  gpumem::simulator::checked region{gpumem::monotonic_resource{source, {.region_size = 1_MiB}}};
  gpumem::simulator::work(stream_, {}, 50us);
  auto* const a = region.allocate(stream_, 1_KiB);
  auto* const b = region.allocate(other_, 1_KiB);
  gpumem::simulator::work(other_, {gpumem::simulator::write(b, 1_KiB)});
  gpumem::simulator::work(stream_, {gpumem::simulator::write(a, 1_KiB)});
  region.deallocate(other_, b, 1_KiB);
  region.deallocate(stream_, a, 1_KiB);
}

TEST_F(monotonic, region_is_reused_after_the_reset_and_the_frees) {
  gpumem::simulator::checked region{gpumem::monotonic_resource{upstream_, {.region_size = 64_KiB, .limit = 64_KiB}}};
  for (int round = 0; round < 50; ++round) {
    auto& user = round % 2 ? stream_ : other_;
    auto& last = round % 2 ? other_ : stream_;
    auto* const a = region.allocate(user, 1_KiB);
    auto* const b = region.allocate(last, 1_KiB);
    gpumem::simulator::work(user, {gpumem::simulator::write(a, 1_KiB)}, 5us);
    gpumem::simulator::work(last, {gpumem::simulator::write(b, 1_KiB)}, 9us);
    region.deallocate(user, a, 1_KiB);
    region.deallocate(last, b, 1_KiB); // not ordered before the reset, but freed in its own order
    region.upstream_resource().reset(user);
  }
}

TEST_F(monotonic, reset_on_another_stream_keeps_the_order_of_the_frees) {
  gpumem::simulator::checked region{gpumem::monotonic_resource{upstream_, {.region_size = 64_KiB, .limit = 64_KiB}}};
  for (int round = 0; round < 20; ++round) {
    auto* const a = region.allocate(stream_, 1_KiB);
    gpumem::simulator::work(stream_, {gpumem::simulator::write(a, 1_KiB)}, 9us);
    region.deallocate(stream_, a, 1_KiB); // not ordered before the reset, but freed in its own order
    region.upstream_resource().reset(other_);
    auto* const b = region.allocate(other_, 1_KiB);
    gpumem::simulator::work(other_, {gpumem::simulator::write(b, 1_KiB)});
    region.deallocate(other_, b, 1_KiB);
    region.upstream_resource().reset(other_);
    other_.synchronize();
  }
}

TEST_F(monotonic, regions_of_raw_streams_go_back_at_the_end) {
  gpumem::device_guard const here{device_};
  for (int round = 0; round < 20; ++round) {
    CUstream raw = nullptr;
    auto& driver = gpumem::driver_api::driver();
    ASSERT_EQ(driver.stream_create(&raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    gpumem::stream_ref const on{raw};
    {
      gpumem::monotonic_resource region{upstream_, {.region_size = 16_MiB}};
      region.deallocate(on, region.allocate(on, 1_KiB), 1_KiB);
    }
    ASSERT_EQ(driver.stream_destroy(raw), CUDA_SUCCESS);
  }
  auto const latest = std::chrono::steady_clock::now() + 10s;
  while (upstream_.counters().bytes.value != 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(upstream_.counters().bytes.value, 0);
}

TEST_F(monotonic, host_gets_memory_that_it_may_touch_at_once) {
  gpumem::simulator::checked region{
      gpumem::monotonic_resource{gpumem::managed_resource{device_}, {.region_size = 64_KiB}}};
  auto* const a = region.allocate(stream_, 1_KiB);
  auto* const b = region.allocate_sync(1_KiB);
  auto* const c = region.allocate(stream_, 1_KiB);
  region.deallocate(stream_, a, 1_KiB);
  region.deallocate_sync(b, 1_KiB);
  region.deallocate(stream_, c, 1_KiB);
  region.upstream_resource().reset(stream_);
  stream_.synchronize();
  region.upstream_resource().reset_sync();
}

TEST_F(monotonic, it_lives_until_its_last_block_is_freed) {
  std::optional<gpumem::allocation> block;
  {
    gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB}};
    block.emplace(region.acquire(stream_, 1_KiB).wait());
  }
  EXPECT_EQ(upstream_.counters().bytes.value, 1 << 20);
  block.reset();
  stream_.synchronize();
  auto const latest = std::chrono::steady_clock::now() + 10s;
  while (upstream_.counters().bytes.value != 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(upstream_.counters().bytes.value, 0);
}

TEST_F(monotonic, request_does_not_wait) {
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB, .limit = 1_MiB}};
  auto const held = region.acquire(stream_, 1_MiB).wait();
  EXPECT_THROW((void)region.acquire(stream_, 1).wait(), gpumem::out_of_memory);
}

TEST_F(monotonic, trim_gives_back_regions_that_were_reset) {
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB}};
  (void)region.allocate(stream_, 1_MiB);
  EXPECT_EQ(region.trim(), 0u);
  region.reset(stream_);
  stream_.synchronize();
  auto const latest = std::chrono::steady_clock::now() + 10s;
  while (region.trim() == 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(region.statistics().reserved, 0u);
}

TEST_F(monotonic, misuse_is_reported) {
  test::recorded_misuse const recorded;
  gpumem::monotonic_resource region{upstream_, {.region_size = 1_MiB}};
  auto* const block = region.allocate(stream_, 100);
  int foreign = 0;
  region.deallocate(stream_, &foreign, 4);
  region.deallocate(stream_, block, 100);
  region.deallocate(stream_, block, 100);
  ASSERT_EQ(test::seen.size(), 2u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::double_free);
}

TEST_F(monotonic, several_threads_share_a_region) {
  gpumem::simulator::checked region{gpumem::monotonic_resource{upstream_, {.region_size = 64_KiB}}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      gpumem::stream own{device_};
      for (int i = 0; i < 200; ++i) {
        auto* const block = region.allocate(own, 1_KiB);
        gpumem::simulator::work(own, {gpumem::simulator::write(block, 1_KiB)});
        region.deallocate(own, block, 1_KiB);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(region.upstream_resource().statistics().live, 0u);
  region.upstream_resource().reset(stream_);
}

TEST_F(monotonic, bad_options_are_refused) {
  auto const make = [&](gpumem::monotonic_options options) {
    gpumem::monotonic_resource<gpumem::cuda_resource>{gpumem::cuda_resource{device_}, std::move(options)};
  };
  EXPECT_THROW(make({.region_size = 0}), std::invalid_argument);
  EXPECT_THROW(make({.region_size = SIZE_MAX}), std::invalid_argument);
  EXPECT_THROW(make({.pool = {.limit = 1_MiB}}), std::invalid_argument);
  EXPECT_THROW(make({.limit = 1}), std::invalid_argument);
}

} // namespace
