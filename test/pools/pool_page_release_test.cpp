// Which pages a pool over virtual pages releases and when, and which pages stay.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <utility>
#include <vector>

import gpumem;
#include "pool_pages.hpp"

namespace {

using namespace gpumem_test;
namespace simulator = gpumem::simulator;

class pool_page_release : public pool_pages_test {};

TEST_F(pool_page_release, pages_go_back_out_of_the_middle) {
  gpumem::pool_resource r{device};
  auto const blocks = four(r);
  for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(device_bytes(), 8 * MiB);
  EXPECT_FALSE(r.find(blocks[1])) << "nothing is there";
  EXPECT_TRUE(r.find(blocks[3])->live);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, blocks[3], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(r.allocate(a, 2 * MiB), blocks[1]) << "a hole at the end shortens the mapped range";
  r.deallocate(a, blocks[1], 2 * MiB);
  r.deallocate(a, blocks[0], 4 * MiB);
}

TEST_F(pool_page_release, page_with_a_live_block_stays) {
  gpumem::pool_resource r{device, {.effort = 1}}; // in the smallest pages
  auto* const large = r.allocate(a, 5 * MiB);
  auto* const small = r.allocate(a, 256 * 1024);
  r.deallocate(a, large, 5 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  r.deallocate(a, small, 256 * 1024);
}

TEST_F(pool_page_release, trim_keeps_the_requested_bytes) {
  gpumem::pool_resource r{device};
  for (auto* each : four(r)) r.deallocate(a, each, 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(7 * MiB), 8 * MiB) << "whole pages";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(r.trim(), 8 * MiB);
  EXPECT_EQ(device_bytes(), 0u);
  EXPECT_EQ(r.statistics().upstream_frees, 2u);
}

TEST_F(pool_page_release, pages_stay_mapped_until_the_host_has_seen_completion) {
  gpumem::pool_resource r{device, {.effort = 1}}; // in the smallest pages
  auto* const p = r.allocate(a, 4 * MiB);
  simulator::work(a, {simulator::write(p, 4 * MiB)});
  r.deallocate(a, p, 4 * MiB);
  EXPECT_EQ(r.trim(), 0u);
  EXPECT_EQ(simulator::report().mappings, 2u);
  simulator::run_until_idle();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(simulator::report().mappings, 0u);
}

// With reuse_policy::ordered memory stays with the streams that freed it. A page is released even if it holds memory of
// several streams.
TEST_F(pool_page_release, pages_shared_by_streams_go_and_the_rest_stays_with_its_stream) {
  gpumem::pool_resource r{device, {.cross_stream = gpumem::reuse_policy::ordered}};
  auto* const keep = r.allocate(a, 256);
  auto* const of_a = r.allocate(a, 3 * MiB);
  auto* const of_b = r.allocate(b, 3 * MiB);
  auto const reserved = r.statistics().reserved;
  r.deallocate(a, of_a, 3 * MiB);
  r.deallocate(b, of_b, 3 * MiB);
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(r.trim(), reserved - 2 * MiB) << "all pages except the one with a live block";
  EXPECT_TRUE(is_consistent(r));
  EXPECT_EQ(r.allocate(a, 1 * MiB), of_a) << "the rest of its own memory";
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  r.deallocate(a, of_a, 1 * MiB);
  r.deallocate(a, keep, 256);
}

TEST_F(pool_page_release, pinned_page_shared_by_streams_stays) {
  gpumem::pool_resource r{device,
                          {.initial_size = 6 * MiB, .effort = 1, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const of_a = r.allocate(a, 3 * MiB);
  auto* const of_b = r.allocate(b, 3 * MiB);
  ASSERT_EQ(of_b, at(of_a, 3 * MiB));
  ASSERT_EQ(r.statistics().reserved, 6 * MiB);
  EXPECT_TRUE(r.pin(of_b, 1)) << "the page between, which has memory of both";
  r.deallocate(a, of_a, 3 * MiB);
  r.deallocate(b, of_b, 3 * MiB);
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_TRUE(is_consistent(r));
  EXPECT_EQ(r.allocate(a, 1 * MiB), at(of_a, 2 * MiB));
  EXPECT_EQ(r.allocate(b, 1 * MiB), of_b);
  r.deallocate(a, at(of_a, 2 * MiB), 1 * MiB);
  r.deallocate(b, of_b, 1 * MiB);
  a.synchronize();
  b.synchronize();
  r.unpin(of_b, 1);
  EXPECT_EQ(r.trim(), 2 * MiB);
  EXPECT_EQ(r.statistics().reserved, 0u);
}

TEST_F(pool_page_release, pinned_pages_stay) {
  gpumem::pool_resource r{device};
  auto const blocks = four(r);
  EXPECT_TRUE(r.pin(blocks[1], 4 * MiB));
  EXPECT_FALSE(r.pin(at(blocks[3], 4 * MiB), 1)) << "nothing is there";
  EXPECT_FALSE(r.pin(&device, 1)) << "not the pool's";
  for (auto* each : blocks) r.deallocate(a, each, 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 12 * MiB);
  r.unpin(blocks[1], 4 * MiB);
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(r.statistics().reserved, 0u);
}

TEST_F(pool_page_release, exportable_pages_are_exported) {
  gpumem::pool_resource r{device, {}, {.exportable = true}};
  auto* const p = r.allocate(a, 2 * MiB);
  auto const page = r.export_page(at(p, 4096));
  EXPECT_EQ(page.base, p);
  EXPECT_EQ(page.bytes, 2 * MiB);
  EXPECT_EQ(close(page.descriptor), 0);
  r.deallocate(a, p, 2 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 0u) << "the memory is exported";
  r.unpin(p, 2 * MiB);
  EXPECT_EQ(r.trim(), 2 * MiB);
  EXPECT_THROW(static_cast<void>(r.export_page(&device)), std::exception);
}

TEST_F(pool_page_release, pages_beyond_the_release_threshold_go_back_in_the_background) {
  gpumem::pool_resource r{device, {.release_threshold = 4 * MiB}};
  auto const blocks = four(r);
  for (auto* each : blocks) r.deallocate(a, each, 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 4 * MiB);
}

TEST_F(pool_page_release, pages_beyond_the_release_threshold_go_back_beside_live_blocks) {
  gpumem::pool_resource r{device, {.release_threshold = 4 * MiB}};
  auto const blocks = four(r);
  for (auto const i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(8 * MiB));
  for (auto const i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(4 * MiB));
}

// Memory that fluctuates by up to 1/8 above the threshold stays reserved.
TEST_F(pool_page_release, pages_a_little_beyond_the_release_threshold_stay) {
  gpumem::pool_resource r{device, {.release_threshold = 32 * MiB}};
  auto* const most = r.allocate(a, 32 * MiB);
  for (int i = 0; i < 10; ++i) r.deallocate(a, r.allocate(a, 4 * MiB), 4 * MiB);
  a.synchronize();
  EXPECT_FALSE(wait_for_device_bytes(32 * MiB));
  EXPECT_EQ(r.statistics().upstream_allocations, 2u);
  EXPECT_EQ(r.statistics().upstream_frees, 0u);
  auto* const more = r.allocate(a, 6 * MiB);
  r.deallocate(a, more, 6 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(32 * MiB));
  r.deallocate(a, most, 32 * MiB);
}

TEST_F(pool_page_release, closed_pool_returns_pages_when_their_blocks_are_freed) {
  gpumem::allocation kept;
  {
    gpumem::pool_resource r{device};
    auto granted = r.acquire(a, 4 * MiB).try_now();
    ASSERT_TRUE(granted);
    kept = std::move(*granted);
  }
  EXPECT_EQ(device_bytes(), 4 * MiB);
  kept.reset();
  EXPECT_TRUE(wait_for_device_bytes(0));
}

// The limit counts bytes outside the pool: those that another source of a program has.
class pool_outside : public pool_pages_test {
protected:
  /// Calls `meanwhile` while a thread maps pages (true) or unmaps them (false).
  pool observed(std::function<void(bool)>& meanwhile) {
    auto const mapped = [&](void*, std::size_t) {
      meanwhile(true);
      return true;
    };
    return pool{device, {.limit = 64 * MiB}, {.on_mapped = mapped, .on_unmapping = [&](auto...) { meanwhile(false); }}};
  }
  static constexpr std::chrono::milliseconds window{50}; // enough for a call that does not wait
};

TEST_F(pool_outside, bytes_count_toward_the_limit_and_unused_memory_makes_room) {
  gpumem::pool_resource r{device, {.limit = 64 * MiB}};
  auto const blocks = four(r);
  for (auto const i : {0, 1}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_FALSE(r.add_outside(57 * MiB)) << "8 MiB are live";
  EXPECT_TRUE(r.add_outside(56 * MiB));
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_FALSE(r.try_allocate(a, 2 * MiB));
  EXPECT_THROW(r.reserve(16 * MiB), gpumem::out_of_memory);
  r.set_limit(32 * MiB);
  EXPECT_EQ(r.statistics().limit, 256u) << "more is outside than the limit allows";
  r.set_limit(64 * MiB);
  r.remove_outside(56 * MiB);
  EXPECT_EQ(r.statistics().limit, 64 * MiB);
  auto* const more = r.allocate(a, 56 * MiB);
  r.deallocate(a, more, 56 * MiB);
  for (auto const i : {2, 3}) r.deallocate(a, blocks[i], 4 * MiB);
  EXPECT_TRUE(r.add_outside(0));
}

TEST_F(pool_outside, pages_that_another_thread_maps_count) {
  std::function<void(bool)> meanwhile = [](bool) {};
  auto r = observed(meanwhile);
  std::future<bool> added;
  meanwhile = [&](bool) {
    if (!added.valid()) added = std::async(std::launch::async, [r] { return pool{r}.add_outside(40 * MiB); });
    added.wait_for(window);
  };
  auto* const grown = r.allocate(a, 40 * MiB);
  EXPECT_FALSE(added.get()) << "80 of 64 MiB";
  EXPECT_EQ(r.statistics().limit, 64 * MiB);
  meanwhile = [&](bool) { EXPECT_THROW(r.add_outside(1), std::invalid_argument) << "it would wait for itself"; };
  auto* const more = r.allocate(a, 8 * MiB);
  r.deallocate(a, more, 8 * MiB);
  r.deallocate(a, grown, 40 * MiB);
  meanwhile = [](bool) {};
  a.synchronize();
  r.trim();
}

TEST_F(pool_outside, request_that_fits_is_granted_beside_bytes_that_do_not_fit) {
  std::function<void(bool)> meanwhile = [](bool) {};
  auto r = observed(meanwhile);
  auto* const live = r.allocate(a, 30 * MiB);
  r.deallocate(b, r.allocate(b, 10 * MiB), 10 * MiB);
  b.synchronize();
  std::future<void*> beside;
  meanwhile = [&](bool mapped) {
    if (mapped || beside.valid()) return;
    beside = std::async(std::launch::async, [this, r] { return pool{r}.try_allocate(a, 20 * MiB).value_or(nullptr); });
    beside.wait_for(window);
  };
  EXPECT_FALSE(r.add_outside(60 * MiB));
  ASSERT_TRUE(beside.valid()) << "the unused 10 MiB go back first";
  auto* const granted = beside.get();
  EXPECT_TRUE(granted);
  meanwhile = [](bool) {};
  r.deallocate(a, granted, 20 * MiB);
  r.deallocate(a, live, 30 * MiB);
  a.synchronize();
  r.trim();
}

} // namespace
