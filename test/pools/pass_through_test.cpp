// Pools that pass each request through to the upstream, so that tools see each block.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../sources/recorded_misuse.hpp"
#include "../support/failing_new.hpp"

namespace {

using namespace gpumem::literals;
using namespace std::chrono_literals;

class pass_through : public simulated {
protected:
  gpumem::device const device_{0};
  gpumem::stream stream_{device_}, other_{device_};
  gpumem::statistics_adaptor<gpumem::cuda_resource> upstream_{gpumem::cuda_resource{device_}};
  static constexpr auto options = [] { return gpumem::pool_options{.pass_through = true}; };
};

TEST_F(pass_through, each_block_is_an_allocation_of_exactly_its_bytes) {
  gpumem::pool_resource pool{upstream_, options()};
  for (std::size_t const bytes : {1ul, 1001ul, 5'000'000ul}) {
    auto* const block = pool.allocate(stream_, bytes);
    EXPECT_EQ(upstream_.counters().bytes.value, static_cast<std::int64_t>(bytes));
    EXPECT_EQ(pool.statistics().live, bytes);
    EXPECT_EQ(pool.statistics().reserved, bytes);
    EXPECT_EQ(pool.find(static_cast<char*>(block) + bytes - 1)->bytes, bytes);
    EXPECT_FALSE(pool.find(static_cast<char*>(block) + bytes));
    pool.deallocate(stream_, block, bytes);
    EXPECT_EQ(upstream_.counters().bytes.value, 0) << "the free is one at once";
  }
  EXPECT_EQ(pool.statistics().peak_live, 5'000'000u);
  EXPECT_EQ(pool.statistics().allocations, 3u);
}

TEST_F(pass_through, memory_that_the_host_can_touch_passes_through_too) {
  auto const expect_exact = [&](auto resource) {
    gpumem::statistics_adaptor const upstream{resource};
    gpumem::pool_resource pool{upstream, options()};
    auto* const block = pool.allocate(stream_, 1001);
    EXPECT_EQ(upstream.counters().bytes.value, 1001);
    pool.deallocate(stream_, block);
    EXPECT_EQ(upstream.counters().bytes.value, 0);
  };
  expect_exact(gpumem::managed_resource{device_});
  expect_exact(gpumem::pinned_resource{device_});
}

TEST_F(pass_through, free_inside_a_capture_ends_the_block_and_leaves_the_capture_valid) {
  gpumem::pool_resource pool{upstream_, options()};
  auto* const block = pool.allocate(stream_, 1000);
  stream_.begin_capture();
  pool.deallocate(stream_, block, 1000);
  EXPECT_FALSE(pool.find(block));
  EXPECT_EQ(pool.statistics().live, 0u);
  EXPECT_EQ(upstream_.counters().bytes.value, 0);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(stream_.end_capture()), CUDA_SUCCESS);
  pool.deallocate(other_, pool.allocate(other_, 1000), 1000);
}

TEST_F(pass_through, pool_of_a_device_uses_the_driver_in_stream_order) {
  gpumem::pool_resource pool{device_, options()};
  gpumem::simulator::clear_driver_calls();
  auto* const block = pool.allocate(stream_, 1000);
  pool.deallocate(stream_, block);
  auto calls = gpumem::simulator::report().driver_calls;
  EXPECT_EQ(calls["cuMemAllocFromPoolAsync"], 1u);
  EXPECT_EQ(calls["cuMemFreeAsync"], 1u);
  EXPECT_EQ(calls["cuMemCreate"] + calls["cuMemAlloc"] + calls["cuStreamSynchronize"], 0u);
}

TEST_F(pass_through, environment_turns_it_on_for_all_pools) {
  setenv("GPUMEM_PASS_THROUGH", "1", 1);
  gpumem::pool_resource pool{upstream_, {.initial_size = 64_MiB, .limit = 128_MiB, .hardened = {.enabled = true}}};
  gpumem::fixed_size_resource fixed{upstream_, {.block_size = 1_MiB}};
  setenv("GPUMEM_PASS_THROUGH", "perhaps", 1);
  EXPECT_THROW((gpumem::pool_resource{upstream_}), std::invalid_argument);
  setenv("GPUMEM_PASS_THROUGH", "0", 1);
  gpumem::pool_resource plain{upstream_};
  unsetenv("GPUMEM_PASS_THROUGH");
  EXPECT_EQ(upstream_.counters().bytes.value, 0) << "nothing is reserved";
  EXPECT_EQ(pool.reserve(1_MiB), 0u);
  auto* const a = pool.allocate(stream_, 100);
  auto* const b = fixed.allocate(stream_, 200);
  EXPECT_EQ(upstream_.counters().bytes.value, 300);
  EXPECT_EQ(fixed.try_allocate(stream_, 2_MiB).error().reason, gpumem::outcome::too_large);
  pool.deallocate(stream_, a, 100);
  fixed.deallocate(stream_, b, 200);
  plain.deallocate(stream_, plain.allocate(stream_, 100), 100);
  EXPECT_GT(upstream_.counters().bytes.value, 300);
}

TEST_F(pass_through, recorded_uses_order_the_free) {
  gpumem::pool_resource pool{device_, options()};
  std::vector<gpumem::stream> users;
  for (int i = 0; i < 6; ++i) users.emplace_back(device_);
  for (int round = 0; round < 20; ++round) {
    auto* const block = pool.allocate(stream_, 1_MiB);
    for (auto& user : users) {
      gpumem::event ready{device_};
      ready.record(stream_);
      user.wait(ready);
      gpumem::simulator::work(user, {gpumem::simulator::read(block, 1_MiB)}, 20us);
      pool.record_use(block, user);
    }
    pool.deallocate(stream_, block, 1_MiB);
  }
}

TEST_F(pass_through, misuse_is_reported) {
  test::recorded_misuse const recorded;
  gpumem::pool_resource pool{upstream_, options()};
  auto* const block = pool.allocate(stream_, 100);
  pool.deallocate(stream_, block, 200);
  pool.deallocate(stream_, block, 100);
  pool.deallocate(stream_, block, 100);
  int foreign = 0;
  pool.deallocate(stream_, &foreign, 4);
  pool.record_use(&foreign, stream_);
  pool.record_use(block, stream_);
  ASSERT_EQ(test::seen.size(), 5u);
  EXPECT_EQ(test::seen[0].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(test::seen[0].expected, 100u);
  EXPECT_EQ(test::seen[1].what, gpumem::misuse::kind::double_free);
  EXPECT_EQ(test::seen[2].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[3].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(test::seen[4].what, gpumem::misuse::kind::recorded_late);
  EXPECT_EQ(upstream_.counters().allocations.value, 0);
}

TEST_F(pass_through, it_lives_until_its_last_block_is_freed) {
  std::optional<gpumem::allocation> block;
  {
    gpumem::pool_resource pool{upstream_, options()};
    block.emplace(pool.acquire(stream_, 100).wait());
  }
  EXPECT_EQ(upstream_.counters().bytes.value, 100);
  block.reset();
  EXPECT_EQ(upstream_.counters().bytes.value, 0);
}

TEST_F(pass_through, closed_pool_refuses_requests) {
  gpumem::pool_resource pool{upstream_, options()};
  auto* const block = pool.allocate(stream_, 100);
  pool.close();
  EXPECT_EQ(pool.try_allocate(stream_, 1).error().reason, gpumem::outcome::closed);
  pool.deallocate(stream_, block, 100);
}

TEST_F(pass_through, request_that_finds_no_memory_fails) {
  gpumem::pool_resource pool{upstream_, options()};
  auto const held = pool.acquire(stream_, 1_KiB).wait();
  EXPECT_THROW((void)pool.acquire(stream_, 1_TiB).wait(), gpumem::out_of_memory);
  EXPECT_FALSE(pool.acquire_all({{stream_, 1_KiB}, {stream_, 1_TiB}}).try_now());
  EXPECT_EQ(pool.statistics().live, 1_KiB);
  EXPECT_GE(pool.statistics().failures, 1u);
}

TEST_F(pass_through, several_threads_share_it) {
  gpumem::simulator::checked pool{gpumem::pool_resource{device_, options()}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      gpumem::stream own{device_};
      for (int i = 0; i < 200; ++i) {
        auto* const block = pool.allocate(own, 1_KiB);
        gpumem::simulator::work(own, {gpumem::simulator::write(block, 1_KiB)});
        pool.deallocate(own, block, 1_KiB);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.upstream_resource().statistics().live, 0u);
}

TEST_F(pass_through, allocation_without_host_memory_for_its_record_leaves_nothing) {
  if (!test::new_can_fail) GTEST_SKIP();
  gpumem::pool_resource pool{upstream_, options()};
  pool.deallocate(stream_, pool.allocate(stream_, 1000), 1000);
  // Some of the first calls to operator new belong to the upstream, the others to the record.
  bool granted = false;
  for (int calls = 0; !granted && calls < 20; ++calls) {
    auto const got = [&] {
      test::failing_new const none{calls};
      return pool.try_allocate(stream_, 1000);
    }();
    granted = got.has_value();
    if (granted) {
      pool.deallocate(stream_, *got, 1000);
    } else {
      EXPECT_EQ(got.error().reason, gpumem::outcome::exhausted);
    }
    EXPECT_EQ(upstream_.counters().bytes.value, 0) << calls;
    EXPECT_EQ(pool.statistics().live, 0u) << calls;
  }
  EXPECT_TRUE(granted);
}

TEST_F(pass_through, pool_with_exported_pages_stays_as_it_is) {
  gpumem::pool_resource pool{device_, options(), {.exportable = true}};
  auto* const block = pool.allocate(stream_, 1000);
  EXPECT_GE(pool.statistics().reserved, 2_MiB);
  pool.deallocate(stream_, block, 1000);
}

} // namespace
