// The cost and benefit of sharing: whose memory a stream takes, when the pool polls for completion, where it grows.
// Time is that of the schedules: it passes only where a test lets it.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem::detail::sync::sleep_for;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_policy : public gpumem_test::simulated_test {
protected:
  using pool = gpumem::pool_resource<gpumem::cuda_resource>;

  static std::byte* at(void* p, std::size_t offset) { return static_cast<std::byte*>(p) + offset; }
  static void let_pass(gpumem::detail::sync::duration time) {
    for (auto const end = gpumem::detail::sync::now() + time; gpumem::detail::sync::now() < end;)
      gpumem::detail::sync::schedule_point();
  }
  // Returns options for a driver that takes `time` for each page that it makes or moves.
  gpumem::virtual_pages_options slow_pages(gpumem::detail::sync::duration time) {
    mapped_ = gpumem::driver_api::driver_calls("cuMemMap");
    return {.on_mapped = [this, time](void*, std::size_t) {
      auto const before = std::exchange(mapped_, gpumem::driver_api::driver_calls("cuMemMap"));
      slow_time += (mapped_ - before) * time;
      let_pass((mapped_ - before) * time);
      return true;
    }};
  }
  // Lets time pass in which the block of 4 MiB is freed and allocated again.
  static void work(pool& r, cuda::stream_ref on, void* kept, gpumem::detail::sync::duration time) {
    for (auto const end = gpumem::detail::sync::now() + time; gpumem::detail::sync::now() < end;) {
      r.deallocate(on, kept, 4 * MiB);
      ASSERT_EQ(r.allocate(on, 4 * MiB), kept);
      sleep_for(50ms);
    }
  }
  static std::uint64_t polls() { return gpumem::driver_api::driver_calls("cuEventQuery"); }
  // Returns the number of pages made plus the number released.
  static std::uint64_t made() {
    return gpumem::driver_api::driver_calls("cuMemCreate") + gpumem::driver_api::driver_calls("cuMemRelease");
  }
  // Records an event after the frees and polls it.
  static void poll(pool& r) { EXPECT_EQ(r.trim(r.statistics().reserved), 0u); }
  // Two polls show that the work takes long.
  static void poll_twice(pool& r) {
    poll(r);
    let_pass(10us);
    poll(r);
  }
  // Frees a block whose use has not run yet.
  static void free_in_use(pool& r, cuda::stream_ref on, void* p, std::size_t bytes) {
    simulator::work(on, {simulator::write(p, bytes)});
    r.deallocate(on, p, bytes);
  }
  // Lets another stream use the pool too, without leaving memory of its own.
  void share(pool& r) const { r.deallocate_sync(r.allocate(b, 4 * MiB), 4 * MiB); }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  gpumem::detail::sync::duration slow_time{0}; // the time of all pages

private:
  std::uint64_t mapped_ = 0;
};

TEST_F(pool_policy, stream_that_is_behind_reuses_its_own_memory_first) {
  for (bool const behind : {false, true}) {
    pool r{device, {.initial_size = 64 * MiB, .effort = 0}};
    share(r);
    auto* const own = r.allocate(a, 6 * MiB);
    auto* const above = r.allocate(a, 4 * MiB);
    auto* const nobodys = r.allocate(a, 4 * MiB);
    auto* const below = r.allocate(a, 4 * MiB);
    r.deallocate_sync(nobodys, 4 * MiB);
    free_in_use(r, a, own, 6 * MiB);
    if (behind) poll_twice(r);
    EXPECT_EQ(a.key().identity().timeline().is_behind(), behind);
    auto* const granted = r.allocate(a, 4 * MiB);
    EXPECT_EQ(granted, behind ? own : nobodys);
    for (auto* const each : {above, below, granted}) r.deallocate(a, each, 4 * MiB);
    poll(r); // records an event of `a`, unless one is open
    simulator::run_until_idle();
    poll(r);
    EXPECT_FALSE(a.key().identity().timeline().is_behind()) << "its work is complete";
  }
}

TEST_F(pool_policy, dead_stream_does_not_make_the_next_one_count_as_behind) {
  auto const* of_dead = static_cast<void const*>(nullptr);
  {
    gpumem::stream const dead{device};
    of_dead = &dead.key().identity().timeline();
    pool r{device, {.initial_size = 64 * MiB, .effort = 0}};
    free_in_use(r, dead, r.allocate(dead, 4 * MiB), 4 * MiB);
    poll_twice(r);
    ASSERT_TRUE(dead.key().identity().timeline().is_behind());
    simulator::run_until_idle();
  }
  gpumem::stream const next{device};
  ASSERT_EQ(&next.key().identity().timeline(), of_dead) << "it reuses the timeline of the destroyed stream";
  EXPECT_FALSE(next.key().identity().timeline().is_behind());
}

TEST_F(pool_policy, freed_memory_coalesces_with_unused_memory_unless_its_stream_is_behind) {
  for (bool const behind : {false, true}) {
    pool r{device, {.initial_size = 64 * MiB, .effort = 0}};
    share(r);
    auto* const apart = r.allocate(a, 6 * MiB);
    auto* const between = r.allocate(a, 4 * MiB);
    auto* const beside = r.allocate(a, 6 * MiB);
    free_in_use(r, a, apart, 6 * MiB);
    if (behind) poll_twice(r);
    r.deallocate(a, beside, 6 * MiB);
    EXPECT_EQ(r.statistics().free_ranges, behind ? 3u : 2u);
    r.deallocate(a, between, 4 * MiB);
    simulator::run_until_idle();
  }
}

TEST_F(pool_policy, request_that_finds_memory_does_not_poll) {
  pool r{device, {.initial_size = 64 * MiB, .effort = 0}};
  auto* const complete = r.allocate(b, 8 * MiB);
  auto* const below = r.allocate(b, 4 * MiB);
  free_in_use(r, b, complete, 8 * MiB);
  poll(r);
  simulator::run_until_idle();
  auto const before = polls();
  r.deallocate(a, r.allocate(a, 7 * MiB), 7 * MiB);
  EXPECT_EQ(polls(), before) << "although completed memory would fit better";
  r.deallocate(b, below, 4 * MiB);
}

// A poll of 64 streams costs 25.6 us, and reuse saves at most 200 us.
TEST_F(pool_policy, pool_grows_if_polls_take_too_much_time) {
  pool r{device, {.effort = 0}};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 64; ++i) streams.emplace_back(device);
  for (auto const& each : streams) free_in_use(r, each, r.allocate(each, 2 * MiB), 2 * MiB);
  std::vector<void*> live;
  auto const allocation_polls = [&] {
    auto const before = polls();
    live.push_back(r.allocate(b, 2 * MiB));
    return polls() > before;
  };
  let_pass(10ms);
  int count = 0;
  while (count < 100 && allocation_polls()) ++count;
  EXPECT_GE(count, 7);
  EXPECT_LE(count, 20);

  simulator::run_until_idle();
  auto const growths = r.statistics().upstream_allocations;
  EXPECT_FALSE(allocation_polls());
  EXPECT_EQ(r.statistics().upstream_allocations, growths + 1) << "the pool does not know yet that all is complete";
  let_pass(1ms);
  EXPECT_TRUE(allocation_polls());
  EXPECT_EQ(r.statistics().upstream_allocations, growths + 1);
  for (auto* const each : live) r.deallocate(b, each, 2 * MiB);
}

TEST_F(pool_policy, polls_at_the_limit_ignore_their_cost) {
  pool r{device, {.effort = 0}};
  std::vector<gpumem::stream> streams;
  for (int i = 0; i < 64; ++i) streams.emplace_back(device);
  for (auto const& each : streams) free_in_use(r, each, r.allocate(each, 2 * MiB), 2 * MiB);
  std::vector<void*> live;
  for (int i = 0; i < 40; ++i) live.push_back(r.allocate(b, 2 * MiB));
  r.set_limit(r.statistics().reserved);
  simulator::run_until_idle();
  auto const before = polls();
  live.push_back(r.allocate(b, 2 * MiB));
  EXPECT_GT(polls(), before);
  EXPECT_EQ(r.statistics().reuse_completed, 1u);
  for (auto* const each : live) r.deallocate(b, each, 2 * MiB);
}

// The second block lies directly after the first, since the pool had one stream until then.
TEST_F(pool_policy, each_stream_grows_beside_its_own_memory) {
  pool r{device, {.effort = 0}};
  auto* const first = r.allocate(a, 4 * MiB);
  auto* const second = r.allocate(b, 4 * MiB);
  std::vector<void*> of_a, of_b;
  for (int i = 0; i < 3; ++i) {
    of_a.push_back(r.allocate(a, 4 * MiB));
    of_b.push_back(r.allocate(b, 4 * MiB));
  }
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(of_a[i], at(of_a[0], i * 4 * MiB));
    EXPECT_EQ(of_b[i], at(of_b[0], i * 4 * MiB));
  }
  auto const reserved = r.statistics().reserved;
  for (auto* const each : of_a) r.deallocate(a, each, 4 * MiB);
  auto* const large = r.allocate(a, 16 * MiB);
  EXPECT_EQ(large, of_a[0]) << "it coalesces with the stream's freed memory";
  EXPECT_EQ(r.statistics().reserved, reserved + 4 * MiB);
  r.deallocate(a, large, 16 * MiB);
  r.deallocate(a, first, 4 * MiB);
  r.deallocate(b, second, 4 * MiB);
  for (auto* const each : of_b) r.deallocate(b, each, 4 * MiB);
}

// Frees every second of four neighbouring blocks of 4 MiB, and polls. The fifth block lies after them.
std::vector<void*> scatter(gpumem::pool_resource<gpumem::cuda_resource>& r, gpumem::stream& on) {
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(r.allocate(on, 4 * MiB));
  for (int i : {0, 2}) r.deallocate(on, blocks[i], 4 * MiB);
  on.synchronize();
  EXPECT_EQ(r.trim(r.statistics().reserved), 0u); // polls
  return blocks;
}

TEST_F(pool_policy, pages_move_once_the_pool_has_worked) {
  for (bool const works : {false, true}) {
    for (auto const pause : {0s, 1s}) {
      pool r{device, {}, slow_pages(40us)};
      auto const blocks = scatter(r, a);
      if (works) work(r, a, blocks[4], 500ms);
      sleep_for(pause);
      auto* const large = r.allocate(a, 8 * MiB);
      EXPECT_EQ(r.statistics().reserved, works ? 20 * MiB : 28 * MiB) << "a pause earns and takes no time";
      for (auto* const each : {large, blocks[1], blocks[3], blocks[4]}) r.deallocate(a, each);
    }
  }
}

// Below a limit pages are small, so that one growth makes far more of them than are free of charge.
TEST_F(pool_policy, growth_by_many_small_pages_takes_no_time_that_is_not_saved) {
  pool r{device, {.limit = 4096 * MiB}, slow_pages(40us)};
  auto* const most = r.allocate(a, 1536 * MiB);
  auto const blocks = scatter(r, a);
  auto const before = r.statistics().reserved;
  work(r, a, blocks[4], 300ms);
  auto* const large = r.allocate(a, 8 * MiB);
  EXPECT_EQ(r.statistics().reserved, before) << "pages move";
  for (auto* const each : {most, large, blocks[1], blocks[3], blocks[4]}) r.deallocate(a, each);
}

// Each round moves four pages or two. The saved time pays for 1,250 pages, less the polls and some new pages.
TEST_F(pool_policy, pages_move_until_the_time_budget_is_used) {
  constexpr int most = 1250 / 4, least = 1250 / 12;
  pool r{device, {}, slow_pages(40us)};
  auto* const kept = r.allocate(b, 4 * MiB);
  work(r, b, kept, 50ms * 20 + 300ms);
  int moving = 0;
  for (int round = 0; round < most + 20; ++round) {
    auto const blocks = scatter(r, a);
    auto const before = r.statistics().reserved;
    auto* const large = r.allocate(a, 8 * MiB);
    moving += r.statistics().reserved == before;
    r.deallocate(a, large, 8 * MiB);
    for (int i : {1, 3, 4}) r.deallocate(a, blocks[i], 4 * MiB);
    a.synchronize();
    r.trim();
    simulator::run_until_idle();
    r.trim();
  }
  EXPECT_GE(moving, least);
  EXPECT_LE(moving, most);
  r.deallocate(b, kept, 4 * MiB);
}

// The pool has no time for moves at first. A stream still works on one of the free blocks.
TEST_F(pool_policy, surplus_pages_go_back_within_a_second) {
  for (bool const works : {false, true}) {
    pool r{device, {}, slow_pages(40us)};
    auto* const used = r.allocate(b, 4 * MiB);
    auto* const between = r.allocate(b, 4 * MiB);
    auto const blocks = scatter(r, a);
    free_in_use(r, b, used, 4 * MiB);
    auto* const large = r.allocate(a, 8 * MiB);
    EXPECT_EQ(r.statistics().reserved, 36 * MiB) << "new pages beside idle ones";
    works ? work(r, a, blocks[4], 1s) : sleep_for(1s);
    EXPECT_EQ(r.statistics().reserved, 28 * MiB) << works;
    simulator::run_until_idle();
    sleep_for(1s);
    EXPECT_EQ(r.statistics().reserved, 28 * MiB) << "no more than the surplus";
    for (auto* const each : {large, blocks[1], blocks[3], blocks[4], between}) r.deallocate(a, each);
  }
}

TEST_F(pool_policy, surplus_pages_go_back_few_at_a_time) {
  pool r{device, {.effort = .001}, slow_pages(40us)};
  std::vector<void*> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(r.allocate(a, 4 * MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) r.deallocate(a, blocks[i], 4 * MiB);
  a.synchronize();
  blocks.push_back(r.allocate(a, 48 * MiB));
  EXPECT_EQ(r.statistics().reserved, 144 * MiB);
  for (auto const end = gpumem::detail::sync::now() + 1s; gpumem::detail::sync::now() < end;) {
    auto const before = gpumem::driver_api::driver_calls("cuMemUnmap");
    sleep_for(1ms);
    EXPECT_LE(gpumem::driver_api::driver_calls("cuMemUnmap") - before, 5u) << "a caller may wait for them";
  }
  EXPECT_EQ(r.statistics().reserved, 96 * MiB);
  for (std::size_t i = 1; i < 24; i += 2) r.deallocate(a, blocks[i], 4 * MiB);
  r.deallocate(a, blocks.back(), 48 * MiB);
}

// A driver that takes 255 us for a page. Each round asks for 64 MiB: 32 pages of 2 MiB, or two large ones.
TEST_F(pool_policy, share_of_the_time_holds_where_pages_are_slow) {
  pool r{device, {.effort = 0.05}, slow_pages(255us)};
  auto const begin = gpumem::detail::sync::now();
  for (int round = 0; round < 100; ++round) {
    r.deallocate_sync(r.allocate(a, 64 * MiB), 64 * MiB);
    r.trim();
    sleep_for(20ms);
  }
  auto const passed = gpumem::detail::sync::now() - begin;
  EXPECT_LE(slow_time, passed / 20 + 100 * 255us + passed / 100) << "the share, one page each time, and slack";
  EXPECT_GE(slow_time, passed / 25);
}

TEST_F(pool_policy, growth_without_saved_time_creates_few_pages) {
  for (double const how : {0., .05, 1.}) {
    pool r{device, {.effort = how}, slow_pages(40us)};
    auto const before = made();
    auto* const block = r.allocate(a, 40 * MiB);
    EXPECT_EQ(made() - before, how == 0 ? 2u : how < 1 ? 5u : 20u) << "of 32 MiB at most, of 6 to 8 MiB, of 2 MiB";
    auto* const other = r.allocate(a, 24 * MiB);
    EXPECT_EQ(made() - before, how == 0 ? 3u : how < 1 ? 9u : 32u);
    r.deallocate(a, block, 40 * MiB);
    r.deallocate(a, other, 24 * MiB);
  }
}

} // namespace
