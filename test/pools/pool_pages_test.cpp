// The pool over virtual pages: growth by what is missing, pages that go and come back, and what stays.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_pages : public gpumem_test::simulated_test {
protected:
  void SetUp() override { EXPECT_TRUE(wait_for_device_bytes(0)); }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  using pool = gpumem::pool_resource<gpumem::cuda_resource>;

  static std::byte* at(void* p, std::size_t offset = 0) { return static_cast<std::byte*>(p) + offset; }
  static bool is_consistent(pool& r) {
    return static_cast<gpumem::detail::pool_state*>(r.services().state)->engine().is_consistent();
  }
  // Four blocks of 4 MiB side by side.
  std::vector<void*> four(pool& r) {
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(r.allocate(a, 4 * MiB));
    for (int i = 1; i < 4; ++i) EXPECT_EQ(blocks[i], at(blocks[0], i * 4 * MiB));
    return blocks;
  }
};

TEST_F(pool_pages, pool_grows_at_its_end_by_the_shortfall) {
  gpumem::pool_resource r{device};
  auto* const first = r.allocate(a, 2 * MiB);
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  auto* const end = r.allocate(a, 2 * MiB);
  r.deallocate(a, end, 2 * MiB);
  auto* const second = r.allocate(a, 6 * MiB); // of which 2 MiB are there
  EXPECT_EQ(second, at(first, 2 * MiB));
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(device_bytes(), 8 * MiB);
  r.deallocate(a, first, 2 * MiB);
  r.deallocate(a, second, 6 * MiB);
  auto* const both = r.allocate(a, 16 * MiB);
  EXPECT_EQ(both, first) << "what is free at the end is the beginning of a larger block";
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, both, 16 * MiB);
}

TEST_F(pool_pages, another_stream_grows_over_what_is_complete_at_the_end) {
  gpumem::pool_resource r{device};
  auto* const p = r.allocate(a, 2 * MiB);
  r.deallocate(a, p, 2 * MiB);
  a.synchronize();
  auto* const q = r.allocate(b, 6 * MiB);
  EXPECT_EQ(q, p);
  EXPECT_EQ(r.statistics().reserved, 6 * MiB);
  r.deallocate(b, q, 6 * MiB);
}

// While pages are mapped others free. What they keep arrives when growth crosses the threshold, and takes in what is
// free beside it.
TEST_F(pool_pages, growth_beyond_the_threshold_is_granted_before_what_was_kept_meanwhile_joins_it) {
  std::function<void()> meanwhile = [] {};
  auto const on_mapped = [&](void*, std::size_t) {
    meanwhile();
    return true;
  };
  gpumem::pool_resource r{device, {.release_threshold = 2 * MiB}, {.on_mapped = on_mapped}};
  auto* const last = r.allocate(a, 1 * MiB); // a large part of the pool, and so at its end
  auto* const first = r.allocate(a, 1 * MiB);
  ASSERT_EQ(last, at(first, 1 * MiB));
  meanwhile = [&] {
    r.deallocate(a, last, 1 * MiB);
    EXPECT_GT(r.statistics().cached, 0u) << "kept near the thread";
  };
  auto* const grown = r.allocate(a, 3 * MiB);
  EXPECT_EQ(r.statistics().cached, 0u) << "beyond the threshold nothing is";
  EXPECT_TRUE(is_consistent(r));
  auto* const next = r.allocate(a, 1 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, next, 1 * MiB);
  r.deallocate(a, grown, 3 * MiB);
  r.deallocate(a, first, 1 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(pool_pages, pages_go_back_out_of_the_middle) {
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
  EXPECT_EQ(r.allocate(a, 2 * MiB), blocks[1]) << "a hole at the end is the end";
  r.deallocate(a, blocks[1], 2 * MiB);
  r.deallocate(a, blocks[0], 4 * MiB);
}

TEST_F(pool_pages, pages_fill_holes_at_the_end_of_the_addresses) {
  gpumem::pool_resource r{device, {}, {.address_space = 16 * MiB}};
  auto const blocks = four(r);
  for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  auto* const again = r.allocate(a, 6 * MiB);
  EXPECT_EQ(again, blocks[1]);
  EXPECT_TRUE(is_consistent(r));
  auto* const rest = r.allocate(a, 2 * MiB);
  EXPECT_EQ(rest, at(blocks[1], 6 * MiB));
  EXPECT_FALSE(r.try_allocate(a, 256)) << "there are no more addresses";
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, again, 6 * MiB);
  r.deallocate(a, rest, 2 * MiB);
  for (int i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

// What is missing at the end would not do by itself elsewhere.
TEST_F(pool_pages, pages_fill_a_hole_up_to_free_memory_at_the_end_of_the_addresses) {
  gpumem::pool_resource r{device, {}, {.address_space = 18 * MiB}};
  auto const blocks = four(r);
  for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  r.deallocate(a, blocks[3], 4 * MiB);
  auto* const large = r.allocate(a, 8 * MiB);
  EXPECT_EQ(large, at(blocks[1], 4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 12 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 8 * MiB);
  r.deallocate(a, blocks[0], 4 * MiB);
}

// It was mapped where it did not fit, given back, and mapped again, for ever.
TEST_F(pool_pages, request_fails_at_the_end_of_the_addresses_if_no_hole_fits) {
  for (double const effort : {0., 1.}) {
    gpumem::pool_resource r{device, {.effort = effort}, {.address_space = 18 * MiB}};
    auto const blocks = four(r);
    for (int i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
    a.synchronize();
    EXPECT_EQ(r.try_allocate(a, 8 * MiB).error().reason, gpumem::outcome::exhausted);
    EXPECT_TRUE(is_consistent(r));
    auto* const less = r.allocate(a, 6 * MiB);
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, less, 6 * MiB);
    for (int i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  }
}

TEST_F(pool_pages, a_page_with_a_block_in_it_stays) {
  gpumem::pool_resource r{device};
  auto* const large = r.allocate(a, 5 * MiB);
  auto* const small = r.allocate(a, 256 * 1024);
  r.deallocate(a, large, 5 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  r.deallocate(a, small, 256 * 1024);
}

TEST_F(pool_pages, trim_keeps_what_is_to_be_kept) {
  gpumem::pool_resource r{device};
  for (auto* each : four(r)) r.deallocate(a, each, 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(7 * MiB), 8 * MiB) << "whole pages";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_EQ(r.trim(), 8 * MiB);
  EXPECT_EQ(device_bytes(), 0u);
  EXPECT_EQ(r.statistics().upstream_frees, 2u);
}

TEST_F(pool_pages, pages_stay_mapped_until_the_host_has_seen_completion) {
  gpumem::pool_resource r{device};
  auto* const p = r.allocate(a, 4 * MiB);
  simulator::work(a, {simulator::write(p, 4 * MiB)});
  r.deallocate(a, p, 4 * MiB);
  EXPECT_EQ(r.trim(), 0u);
  EXPECT_EQ(simulator::report().mappings, 2u);
  simulator::run_until_idle();
  EXPECT_EQ(r.trim(), 4 * MiB);
  EXPECT_EQ(simulator::report().mappings, 0u);
}

TEST_F(pool_pages, free_pages_are_evicted_at_the_limit) {
  gpumem::pool_resource r{device, {.limit = 16 * MiB}};
  auto const blocks = four(r);
  for (int i : {0, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  auto* const large = r.allocate(a, 8 * MiB); // 8 MiB are free, not in one piece
  EXPECT_EQ(large, at(blocks[3], 4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  EXPECT_EQ(r.statistics().peak_reserved, 16 * MiB);
  EXPECT_FALSE(r.try_allocate(a, 256));
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 8 * MiB);
  for (int i : {1, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

TEST_F(pool_pages, stay_where_giving_them_up_would_not_be_enough) {
  gpumem::pool_resource r{device, {.limit = 16 * MiB}};
  auto const blocks = four(r);
  r.deallocate(a, blocks[1], 4 * MiB);
  a.synchronize();
  auto const calls = [] { return gpumem::driver_calls("cuMemUnmap") + gpumem::driver_calls("cuMemRelease"); };
  auto const before = calls();
  EXPECT_FALSE(r.try_allocate(b, 8 * MiB));
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(r.statistics().reserved, 16 * MiB);
  for (int i : {0, 2, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

TEST_F(pool_pages, move_beside_new_ones_where_the_limit_leaves_some_room) {
  gpumem::pool_resource r{device, {.limit = 18 * MiB}};
  auto const blocks = four(r);
  for (int i : {0, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  auto const released = gpumem::driver_calls("cuMemRelease"), created = gpumem::driver_calls("cuMemCreate");
  auto* const large = r.allocate(a, 10 * MiB);
  EXPECT_EQ(gpumem::driver_calls("cuMemRelease"), released);
  EXPECT_EQ(gpumem::driver_calls("cuMemCreate"), created + 1);
  EXPECT_EQ(r.statistics().reserved, 18 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, large, 10 * MiB);
  for (int i : {1, 3}) r.deallocate(a, blocks[i], 4 * MiB);
}

// At the end eight pages would be missing, where the block was that has gone only six.
TEST_F(pool_pages, pages_fill_the_hole_between_free_memory_at_the_limit) {
  gpumem::pool_resource r{device, {.limit = 10 * MiB}};
  auto* const below = r.allocate(a, 1 * MiB);
  auto* const gone = r.allocate(a, 8 * MiB);
  auto* const above = r.allocate(a, 1 * MiB - 256);
  r.deallocate(a, gone, 8 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  EXPECT_EQ(r.statistics().reserved, 4 * MiB);
  auto* const again = r.try_allocate(a, 8 * MiB).value_or(nullptr);
  EXPECT_EQ(again, gone);
  EXPECT_EQ(r.statistics().reserved, 10 * MiB);
  r.deallocate(a, again, 8 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  auto* const less = r.try_allocate(a, 7 * MiB - 256).value_or(nullptr);
  EXPECT_EQ(less, gone) << "with the free memory below it is enough";
  for (auto* const each : {below, above, less}) r.deallocate(a, each);
}

TEST_F(pool_pages, pages_fill_the_end_of_a_hole_where_more_is_free_above) {
  gpumem::pool_resource r{device, {.limit = 10 * MiB}};
  auto* const below = r.allocate(a, 2 * MiB);
  auto* const gone = r.allocate(a, 7 * MiB);
  auto* const above = r.allocate(a, 1 * MiB - 256);
  r.deallocate(a, gone, 7 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 6 * MiB);
  r.set_limit(8 * MiB);
  auto* const again = r.try_allocate(a, 5 * MiB - 256).value_or(nullptr);
  EXPECT_EQ(again, at(gone, 2 * MiB)) << "with the free memory above it is enough";
  EXPECT_EQ(r.statistics().reserved, 8 * MiB);
  EXPECT_TRUE(is_consistent(r));
  r.deallocate(a, again);
  a.synchronize();
  r.set_limit(10 * MiB);
  EXPECT_EQ(r.allocate(a, 7 * MiB), gone) << "what is left of the gap is filled too";
  r.deallocate(a, gone);
  for (auto* const each : {below, above}) r.deallocate(a, each);
}

// With reuse_policy::ordered memory stays with the streams that freed it, and pages go in which that of several lies.
TEST_F(pool_pages, those_of_several_streams_go_and_the_rest_stays_with_each) {
  gpumem::pool_resource r{device, {.cross_stream = gpumem::reuse_policy::ordered}};
  auto* const keep = r.allocate(a, 256);
  auto* const of_a = r.allocate(a, 3 * MiB);
  auto* const of_b = r.allocate(b, 3 * MiB);
  auto const reserved = r.statistics().reserved;
  r.deallocate(a, of_a, 3 * MiB);
  r.deallocate(b, of_b, 3 * MiB);
  a.synchronize();
  b.synchronize();
  EXPECT_EQ(r.trim(), reserved - 2 * MiB) << "all but the page in which a block lives";
  EXPECT_TRUE(is_consistent(r));
  EXPECT_EQ(r.allocate(a, 1 * MiB), of_a) << "what is left of its own";
  EXPECT_EQ(r.statistics().reserved, 2 * MiB);
  r.deallocate(a, of_a, 1 * MiB);
  r.deallocate(a, keep, 256);
}

TEST_F(pool_pages, pinned_ones_stay_where_those_of_several_streams_go) {
  gpumem::pool_resource r{device, {.initial_size = 6 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  auto* const of_b = r.allocate(b, 3 * MiB);
  auto* const of_a = r.allocate(a, 3 * MiB);
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

TEST_F(pool_pages, pinned_ones_stay) {
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

TEST_F(pool_pages, exportable_pages_are_exported) {
  gpumem::pool_resource r{device, {}, {.exportable = true}};
  auto* const p = r.allocate(a, 2 * MiB);
  auto const descriptor = r.export_page(p);
  EXPECT_GE(descriptor, 0);
  close(descriptor);
  r.deallocate(a, p, 2 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 0u) << "somebody else has it";
  r.unpin(p, 2 * MiB);
  EXPECT_EQ(r.trim(), 2 * MiB);
  EXPECT_THROW(static_cast<void>(r.export_page(&device)), std::exception);
}

TEST_F(pool_pages, mapping_callback_is_called) {
  std::size_t told = 0;
  {
    gpumem::pool_resource r{device,
                            {},
                            {.on_mapped = [&](void*, std::size_t bytes) { return (told += bytes) <= 8 * MiB; },
                             .on_unmapping = [&](void*, std::size_t bytes) { told -= bytes; }}};
    auto* const p = r.allocate(a, 8 * MiB);
    EXPECT_EQ(told, 8 * MiB);
    EXPECT_FALSE(r.try_allocate(a, 2 * MiB)) << "the listener refuses";
    EXPECT_EQ(r.statistics().reserved, 8 * MiB);
    EXPECT_TRUE(is_consistent(r));
    r.deallocate(a, p, 8 * MiB);
    a.synchronize();
    told = 8 * MiB; // what was refused is not told of again
    r.trim();
  }
  EXPECT_EQ(told, 0u);
}

TEST_F(pool_pages, reserved_pages_are_one_range) {
  gpumem::pool_resource r{device, {.initial_size = 6 * MiB}};
  EXPECT_EQ(r.statistics().reserved, 6 * MiB);
  EXPECT_EQ(r.reserve(9 * MiB), 3 * MiB);
  EXPECT_EQ(r.statistics().reserved, 10 * MiB) << "whole pages";
  EXPECT_EQ(r.statistics().largest_free, 10 * MiB);
}

TEST_F(pool_pages, pages_beyond_the_release_threshold_go_back_in_the_background) {
  gpumem::pool_resource r{device, {.release_threshold = 4 * MiB}};
  auto const blocks = four(r);
  for (auto* each : blocks) r.deallocate(a, each, 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(4 * MiB));
  EXPECT_EQ(r.statistics().reserved, 4 * MiB);
}

TEST_F(pool_pages, pages_beyond_the_release_threshold_go_back_beside_live_blocks) {
  gpumem::pool_resource r{device, {.release_threshold = 4 * MiB}};
  auto const blocks = four(r);
  for (auto const i : {1, 2}) r.deallocate(a, blocks[i], 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(8 * MiB));
  for (auto const i : {0, 3}) r.deallocate(a, blocks[i], 4 * MiB);
  EXPECT_TRUE(wait_for_device_bytes(4 * MiB));
}

// What comes and goes within an eighth above the threshold stays.
TEST_F(pool_pages, pages_a_little_beyond_the_release_threshold_stay) {
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

TEST_F(pool_pages, closed_pool_returns_pages_when_their_blocks_are_freed) {
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

} // namespace
