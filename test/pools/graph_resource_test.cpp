// Graph memory by itself: which stream gets a freed range, growth inside a capture, misuse, and the end.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include "../support/failing_new.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using gpumem::driver_api::driver_calls;
using gpumem_test::begin_capture;
using gpumem_test::cu;
using gpumem_test::end_capture;
using gpumem_test::join_streams;
using kind = gpumem::misuse::kind;
namespace simulator = gpumem::simulator;

class graph_resource : public gpumem_test::capture_test {
protected:
  graph_type memory{pool};
};

TEST_F(graph_resource, freed_range_serves_its_stream_at_once) {
  auto* const p = memory.allocate(a, 10 * KiB);
  write(a, p, 10 * KiB, 1); // not complete
  memory.deallocate(a, p, 10 * KiB);
  EXPECT_EQ(memory.allocate(a, 10 * KiB), p);
  memory.deallocate(a, p, 10 * KiB);
  EXPECT_EQ(memory.statistics().reuse_same_stream, 1u);
}

TEST_F(graph_resource, memory_that_the_host_can_access_is_granted_after_its_uses) {
  gpumem::graph_resource managed{gpumem::pool_resource{gpumem::any_pool{gpumem::managed_resource{device}}}};
  auto* const p = managed.allocate(a, 10 * KiB);
  write(a, p, 10 * KiB, 1); // not complete
  managed.deallocate(a, p, 10 * KiB);
  auto* const again = managed.allocate(a, 10 * KiB);
  EXPECT_EQ(again, p);
  EXPECT_EQ(static_cast<unsigned char*>(again)[0], 1) << "the work of the stream has run";
  managed.deallocate(a, again, 10 * KiB);
}

TEST_F(graph_resource, freed_range_serves_no_other_stream) {
  auto* const p = memory.allocate(a, 2 * MiB);
  memory.deallocate(a, p, 2 * MiB);
  simulator::run_until_idle();
  auto* const other = memory.allocate(b, 2 * MiB);
  ASSERT_NE(other, p) << "also not after the work of the first stream";
  EXPECT_EQ(memory.allocate(a, 2 * MiB), p);
  memory.deallocate(a, p, 2 * MiB);
  memory.deallocate(b, other, 2 * MiB);
}

TEST_F(graph_resource, range_belongs_to_the_stream_that_frees_it) {
  auto* const p = memory.allocate(a, 2 * MiB);
  memory.deallocate(b, p, 2 * MiB); // the caller has ordered b after a
  auto* const other = memory.allocate(a, 2 * MiB);
  EXPECT_NE(other, p);
  EXPECT_EQ(memory.allocate(b, 2 * MiB), p);
  memory.deallocate(b, p, 2 * MiB);
  memory.deallocate(a, other, 2 * MiB);
}

TEST_F(graph_resource, ranges_of_two_streams_do_not_coalesce) {
  auto* const low = memory.allocate(a, 512 * KiB);
  auto* const high = memory.allocate(b, 512 * KiB);
  ASSERT_EQ(static_cast<char*>(low) + 512 * KiB, high);
  memory.deallocate(a, low, 512 * KiB);
  memory.deallocate(b, high, 512 * KiB);
  auto* const large = memory.allocate(b, 1 * MiB - KiB);
  EXPECT_NE(large, low);
  memory.deallocate(b, large, 1 * MiB - KiB);
}

TEST_F(graph_resource, handle_of_a_destroyed_stream_gets_none_of_its_ranges) {
  auto const first = make_foreign();
  auto* const p = memory.allocate(first, 2 * MiB);
  memory.deallocate(first, p, 2 * MiB);
  cu().stream_destroy(first.get());
  for (int i = 0; i < 4; ++i) {
    auto const next = make_foreign();
    auto* const other = memory.allocate(next, 2 * MiB);
    EXPECT_NE(other, p);
    memory.deallocate(next, other, 2 * MiB);
    cu().stream_destroy(next.get());
  }
}

TEST_F(graph_resource, chunks_are_small_for_small_requests_and_exact_for_large_ones) {
  auto const before = pool.statistics().live;
  auto* const small = memory.allocate(a, 100);
  EXPECT_EQ(memory.statistics().reserved, 2 * MiB);
  auto* const more = memory.allocate(b, 1 * MiB);
  EXPECT_EQ(memory.statistics().reserved, 2 * MiB) << "memory without a use serves each stream";
  auto* const large = memory.allocate(a, 5 * MiB + 1);
  EXPECT_EQ(memory.statistics().reserved, 2 * MiB + 5 * MiB + 2 * 256) << "with a granule in front";
  EXPECT_EQ(memory.statistics().upstream_allocations, 2u);
  EXPECT_EQ(pool.statistics().live - before, memory.statistics().reserved);
  memory.deallocate(a, small, 100);
  memory.deallocate(b, more, 1 * MiB);
  memory.deallocate(a, large, 5 * MiB + 1);
}

TEST_F(graph_resource, request_near_the_limit_gets_a_chunk_of_its_size) {
  pool_type const tight{gpumem::cuda_resource{device}, {.limit = 1 * MiB}};
  graph_type in_it{tight};
  auto* const p = in_it.allocate(a, 600 * KiB);
  EXPECT_EQ(in_it.statistics().reserved, 600 * KiB + 256);
  auto const refused = in_it.try_allocate(a, 600 * KiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, gpumem::outcome::exhausted);
  EXPECT_EQ(in_it.try_allocate(a, 2 * MiB).error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(in_it.try_allocate(a, PTRDIFF_MAX - 256).error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(in_it.statistics().failures, 3u);
  EXPECT_THROW((void)in_it.acquire(a, 600 * KiB).wait(), gpumem::out_of_memory) << "a request does not wait";
  in_it.deallocate(a, p, 600 * KiB);
}

TEST_F(graph_resource, every_alignment_is_honoured) {
  for (std::size_t alignment = 1; alignment <= 4 * MiB; alignment *= 4) {
    auto* const p = memory.allocate(a, 1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % std::max<std::size_t>(alignment, 256), 0u);
    memory.deallocate(a, p, 1000, alignment);
  }
  EXPECT_THROW((void)memory.allocate(a, 1000, 3), std::invalid_argument);
  EXPECT_EQ(memory.allocate(a, 0), nullptr);
}

// An own stream may take part in a capture that was begun on its handle, of which only the driver knows.
TEST_F(graph_resource, only_requests_ask_the_driver_without_growth) {
  auto* const first = memory.allocate(a, 1 * MiB - KiB);
  auto const before = driver_calls();
  auto const asked = driver_calls("cuStreamGetCaptureInfo");
  memory.deallocate(a, first, 1 * MiB - KiB);
  for (int i = 0; i < 100; ++i) {
    auto* const p = memory.allocate(a, 100 + i * KiB);
    auto* const q = memory.allocate(b, 300);
    memory.deallocate(a, p, 100 + i * KiB);
    memory.deallocate(b, q, 300);
  }
  EXPECT_EQ(driver_calls("cuStreamGetCaptureInfo") - asked, 200u);
  EXPECT_EQ(driver_calls() - before, 200u);
}

TEST_F(graph_resource, growth_in_a_capture_leaves_it_valid) {
  // An upstream whose own calls are unsafe in a capture.
  gpumem_test::recording_upstream upstream;
  for (auto const mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    gpumem::graph_resource in_foreign{gpumem::pool_resource{upstream}};
    gpumem::graph_resource in_pages{pool_type{device}};
    gpumem::graph_resource without_pool{gpumem::cuda_resource{device}};
    begin_capture(a, mode);
    auto const grow = [&](auto& in) { in.deallocate(a, in.allocate(a, 3 * MiB), 3 * MiB); };
    grow(in_foreign);
    grow(in_pages);
    grow(without_pool);
    std::thread{[&] {
      gpumem::device_guard const here{device};
      in_pages.deallocate(b, in_pages.allocate(b, 5 * MiB), 5 * MiB);
    }}.join();
    auto now = CU_STREAM_CAPTURE_MODE_RELAXED;
    cu().thread_exchange_stream_capture_mode(&now);
    EXPECT_EQ(now, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the thread's mode is as before";
    cu().thread_exchange_stream_capture_mode(&now);
    end_capture(a);
  }
}

TEST_F(graph_resource, end_of_a_graph_memory_leaves_a_capture_valid) {
  gpumem_test::recording_upstream upstream;
  std::optional<gpumem::graph_resource<gpumem_test::recording_upstream>> ended{std::in_place, upstream};
  ended->deallocate(a, ended->allocate(a, 1), 1);
  begin_capture(b);
  ended.reset();
  EXPECT_EQ(upstream.state().returns().size(), 1u);
  end_capture(b);
}

TEST_F(graph_resource, memory_goes_back_when_the_last_handle_and_block_are_gone) {
  auto const before = pool.statistics().live;
  std::optional<graph_type> handle{std::in_place, pool};
  auto* const freed = handle->allocate(a, 3 * MiB);
  auto kept = handle->acquire(a, 5 * MiB).wait();
  handle->deallocate(a, freed, 3 * MiB);
  EXPECT_EQ(handle->trim(), 0u);
  EXPECT_EQ(gpumem::trim(*handle, 0), 0u);
  EXPECT_EQ(handle->statistics().reserved, 8 * MiB + 2 * 256);
  pool.trim();
  EXPECT_GT(pool.statistics().reserved, 8 * MiB) << "the pool moves and returns nothing that a graph may use";
  handle.reset();
  EXPECT_EQ(pool.statistics().live - before, 8 * MiB + 2 * 256) << "a block lives";
  kept.reset();
  EXPECT_EQ(pool.statistics().live, before);
}

TEST_F(graph_resource, graph_memory_keeps_its_pool_alive) {
  std::optional<pool_type> short_lived{std::in_place, device};
  graph_type outlives{*short_lived};
  short_lived.reset();
  auto* const p = outlives.allocate(a, 10);
  EXPECT_EQ(outlives.upstream().statistics().live, 2 * MiB);
  outlives.deallocate(a, p, 10);
}

TEST_F(graph_resource, host_frees_leave_the_range_to_the_block_s_stream) {
  auto* const p = memory.allocate(a, 2 * MiB);
  memory.deallocate_sync(p, 2 * MiB);
  auto* const by_host = memory.allocate_sync(2 * MiB);
  EXPECT_NE(by_host, p);
  EXPECT_EQ(memory.allocate(a, 2 * MiB), p);
  memory.deallocate_sync(by_host, 2 * MiB);
  EXPECT_EQ(memory.allocate_sync(2 * MiB), by_host);
  memory.deallocate_sync(by_host, 2 * MiB);
  memory.deallocate(a, p, 2 * MiB);
}

TEST_F(graph_resource, recorded_use_keeps_the_memory_from_reuse) {
  auto* const p = memory.allocate(a, 2 * MiB);
  memory.record_use(p, b);
  memory.deallocate(a, p, 2 * MiB);
  for (auto const* const on : {&a, &b}) {
    auto* const other = memory.allocate(*on, 2 * MiB);
    EXPECT_NE(other, p);
    memory.record_use(other, *on); // by the stream that frees it: nothing to keep
    memory.deallocate(*on, other, 2 * MiB);
    EXPECT_EQ(memory.allocate(*on, 2 * MiB), other);
    memory.deallocate(*on, other, 2 * MiB);
  }
}

TEST_F(graph_resource, find_describes_blocks_and_free_ranges) {
  auto* const p = memory.allocate(a, 1000);
  auto const found = memory.find(static_cast<char*>(p) + 999);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, p);
  EXPECT_EQ(found->bytes, 1000u);
  EXPECT_EQ(found->allocated, 1024u);
  EXPECT_EQ(found->stream, a.key().identity().id());
  EXPECT_TRUE(found->live);
  EXPECT_FALSE(memory.find(static_cast<char*>(p) - 1)) << "the granule in front";
  memory.deallocate(a, p);
  EXPECT_FALSE(memory.find(p)->live);
  EXPECT_FALSE(memory.find(&found));
}

TEST_F(graph_resource, misuse_is_reported_and_changes_nothing) {
  test::recorded_misuse const recorded;
  auto* const p = static_cast<char*>(memory.allocate(a, 1000));
  memory.deallocate(a, p, 999);
  memory.deallocate(a, p + 256, 1000);
  memory.record_use(p + 256, b);
  ASSERT_EQ(memory.find(p)->live, true);
  memory.deallocate(a, p, 1000);
  memory.deallocate(a, p, 1000);
  memory.deallocate(a, p);
  memory.record_use(p, b);
  memory.record_use(&memory, b);
  memory.deallocate(a, &memory, 8);
  std::vector<kind> kinds;
  for (auto const& each : test::seen) kinds.push_back(each.what);
  EXPECT_EQ(kinds, (std::vector{kind::wrong_size, kind::foreign_pointer, kind::foreign_pointer, kind::double_free,
                                kind::double_free, kind::recorded_late, kind::foreign_pointer, kind::foreign_pointer}));
  EXPECT_EQ(test::seen[0].expected, 1000u);
  EXPECT_STREQ(test::seen[0].resource, "graph_resource");
  EXPECT_EQ(memory.statistics().frees, 1u);
}

TEST_F(graph_resource, moved_from_handle_says_so) {
  test::recorded_misuse const recorded;
  auto* const p = memory.allocate(a, 10);
  auto moved = std::move(memory);
  EXPECT_FALSE(memory.valid());
  EXPECT_THROW((void)memory.allocate(a, 10), std::invalid_argument);
  EXPECT_THROW(memory.record_use(p, a), std::invalid_argument);
  EXPECT_THROW((void)memory.find(p), std::invalid_argument);
  EXPECT_THROW((void)pool.capture(memory, a), std::invalid_argument);
  memory.deallocate(a, p);
  ASSERT_EQ(test::seen.size(), 1u);
  EXPECT_EQ(test::seen[0].what, kind::moved_from);
  moved.deallocate(a, p, 10);
  auto const kept = std::move(pool);
  EXPECT_THROW(graph_type{pool}, std::invalid_argument) << "an upstream that was moved from";
}

TEST_F(graph_resource, statistics_add_up) {
  auto* const p = memory.allocate(a, 1000);
  auto* const q = memory.allocate(b, 3 * MiB);
  memory.deallocate(a, p, 1000);
  auto const now = memory.statistics();
  EXPECT_EQ(now.live, 3 * MiB);
  EXPECT_EQ(now.peak_live, 3 * MiB + 1000);
  EXPECT_EQ(now.allocated + now.free + 2 * 256, now.reserved);
  EXPECT_EQ(now.peak_reserved, now.reserved);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.frees, 1u);
  EXPECT_EQ(now.free_ranges, 2u);
  EXPECT_EQ(now.largest_free, 2 * MiB - 256 - 1024);
  memory.deallocate(b, q, 3 * MiB);
}

TEST_F(graph_resource, threads_share_a_graph_memory) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      gpumem::device_guard const here{device};
      gpumem::stream const own{device};
      std::vector<void*> live;
      for (std::size_t i = 0; i < 200; ++i) {
        live.push_back(memory.allocate(own, 1 + (i * 7919 + static_cast<std::size_t>(t)) % (64 * KiB)));
        if (live.size() < 5) continue;
        memory.deallocate(own, live.front());
        live.erase(live.begin());
      }
      for (auto* const each : live) memory.deallocate(own, each);
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(memory.statistics().live, 0u);
  EXPECT_EQ(memory.statistics().allocated, 0u);
  EXPECT_EQ(memory.statistics().allocations, 800u);
}

// A restore that is refused has changed nothing: neither the blocks nor the counts.
TEST_F(graph_resource, refused_restore_changes_nothing) {
  auto* const first = memory.allocate(a, 10 * KiB);
  auto* const second = memory.allocate(a, 20 * KiB);
  memory.deallocate(b, memory.allocate(b, 30 * KiB), 30 * KiB);
  auto const before = memory.memory_map();
  auto const live_blocks = [&] {
    std::vector<gpumem::memory_range> live;
    for (auto const& one : memory.memory_map()) {
      if (one.live) live.push_back(one);
    }
    return live;
  };
  auto const same = [&] {
    auto const now = memory.memory_map();
    auto const equal = [](gpumem::memory_range const& x, gpumem::memory_range const& y) {
      return x.base == y.base && x.bytes == y.bytes && x.live == y.live && x.requested == y.requested;
    };
    return std::ranges::equal(before, now, equal) && memory.statistics().live == 30 * KiB;
  };
  auto const changed = [&](auto change) {
    auto live = live_blocks();
    change(live);
    return live;
  };
  using ranges = std::vector<gpumem::memory_range>;
  for (auto const& bad :
       {changed([](ranges& live) { live.back().stream = 12345; }),
        changed([](ranges& live) { live.push_back(live.front()); }),
        changed([](ranges& live) { live.back().bytes += 2 * MiB; }),
        changed([](ranges& live) { live.back().bytes = 0; }), changed([](ranges& live) { live.back().base = &live; }),
        changed([](ranges& live) { live.back().base = static_cast<char*>(live.back().base) + 1; }),
        changed([](ranges& live) { live.back().requested = live.back().bytes + 1; })}) {
    EXPECT_THROW(memory.restore(bad), std::invalid_argument);
    ASSERT_TRUE(same());
  }
  for (int n = 0; test::new_can_fail; ++n) {
    auto const live = live_blocks();
    try {
      test::failing_new const fails{n};
      memory.restore(live);
      break;
    } catch (std::bad_alloc const&) { ASSERT_TRUE(same()); }
  }
  EXPECT_EQ(memory.statistics().live, 30 * KiB);
  memory.restore({});
  EXPECT_EQ(memory.statistics().live, 0u);
  ranges all;
  for (auto const& one : before) {
    if (one.live) all.push_back(one);
  }
  memory.restore(all);
  memory.deallocate(a, first, 10 * KiB);
  memory.deallocate(a, second, 20 * KiB);
  EXPECT_EQ(memory.statistics().live, 0u);
}

} // namespace
