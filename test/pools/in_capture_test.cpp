// A pool while one of its streams captures: frees, requests that cannot be served, and graphs that are launched.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using gpumem::outcome;
using gpumem::stream_ref;
using gpumem::driver_api::driver_calls;
using gpumem_test::begin_capture;
using gpumem_test::captured_graph;
using gpumem_test::cu;
using gpumem_test::end_capture;
using gpumem_test::join_streams;
using kind = gpumem::misuse::kind;
namespace simulator = gpumem::simulator;

class in_capture : public gpumem_test::scope_test {};

TEST_F(in_capture, blocks_may_be_freed_through_the_pool_anywhere) {
  std::array<void*, 4> blocks{};
  gpumem::allocation held, late;
  auto const live = pool.statistics().live;
  {
    auto const scope = pool.capture(memory, a);
    begin_capture(a);
    for (auto& each : blocks) each = pool.allocate(a, KiB);
    held = pool.acquire(a, KiB).wait();
    late = pool.acquire(a, KiB).wait();
    pool.deallocate(a, blocks[0], KiB); // in the capture
    held.reset();
    end_capture(a);
    pool.deallocate(a, blocks[1], KiB); // after the capture
  }
  pool.deallocate(b, blocks[2], KiB); // after the scope, on another stream
  pool.deallocate(a, blocks[3]);      // without size
  late.reset();
  EXPECT_EQ(memory.statistics().live, 0u);
  EXPECT_EQ(memory.statistics().frees, 6u);
  EXPECT_EQ(pool.statistics().live - live, 2 * MiB) << "the chunk";
  auto* const own = pool.allocate(a, KiB);
  pool.deallocate(a, own, KiB);
  EXPECT_EQ(memory.statistics().frees, 6u) << "a block of the pool is not affected";
}

TEST_F(in_capture, misuse_through_the_pool_is_reported) {
  test::recorded_misuse const recorded;
  void* p = nullptr;
  {
    auto const scope = pool.capture(memory, a);
    begin_capture(a);
    p = pool.allocate(a, KiB);
    end_capture(a);
  }
  int outside = 0;
  auto* const own = pool.allocate(a, KiB);
  pool.deallocate(a, own, KiB);
  pool.deallocate(a, p, KiB - 1);
  pool.deallocate(b, static_cast<char*>(p) + 256);
  pool.deallocate(a, p, KiB);
  pool.deallocate(a, p, KiB);
  pool.deallocate(a, &outside, 4);
  pool.deallocate(a, own, KiB);
  std::vector<kind> kinds;
  for (auto const& each : test::seen) kinds.push_back(each.what);
  EXPECT_EQ(kinds, (std::vector{kind::wrong_size, kind::foreign_pointer, kind::double_free, kind::foreign_pointer,
                                kind::double_free}));
}

TEST_F(in_capture, find_and_record_use_of_the_pool_reach_graph_memory) {
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  auto* const p = pool.allocate(a, 3 * MiB);
  EXPECT_EQ(pool.find(static_cast<char*>(p) + 100)->base, p);
  EXPECT_EQ(pool.find(p)->bytes, 3 * MiB);
  auto const before = driver_calls("cuEventRecord");
  pool.record_use(p, b);
  pool.deallocate(a, p, 3 * MiB);
  EXPECT_EQ(driver_calls("cuEventRecord"), before);
  auto* const q = pool.allocate(a, 3 * MiB);
  EXPECT_NE(q, p) << "b may still use it at each launch";
  pool.deallocate(a, q, 3 * MiB);
  end_capture(a);
}

TEST_F(in_capture, other_memory_freed_in_a_capture_is_deferred) {
  auto const foreign = make_foreign();
  for (stream_ref const on : {stream_ref{a}, foreign}) {
    auto* const p = pool.allocate(on, 16 * MiB);
    auto* const small = pool.allocate(on, KiB);
    auto held = pool.acquire(on, KiB).wait();
    auto const scope = pool.capture(memory, on);
    begin_capture(on);
    auto const records = driver_calls("cuEventRecord");
    auto const seen = pool.statistics();
    auto const identified = [&](auto free) {
      auto const before = driver_calls();
      free();
      return driver_calls() - before;
    };
    EXPECT_LE(identified([&] { pool.deallocate(on, p, 16 * MiB); }), 6u) << "only to identify the stream";
    EXPECT_LE(identified([&] { pool.deallocate(on, small, KiB); }), 6u);
    EXPECT_EQ(pool.statistics().free, seen.free) << "they become free after the capture";
    EXPECT_LT(pool.statistics().live, seen.live);
    held.reset();
    EXPECT_EQ(pool.statistics().cached, seen.cached) << "a cache would give it out again while the capture runs";
    EXPECT_EQ(driver_calls("cuEventRecord"), records);
    end_capture(on);
    auto* const again = pool.allocate(on, 16 * MiB);
    EXPECT_EQ(pool.statistics().reserved, seen.reserved) << "a call outside the capture completes the free";
    pool.deallocate(on, again, 16 * MiB);
  }
  simulator::run_until_idle();
  cu().stream_destroy(foreign.get());
}

TEST_F(in_capture, request_never_waits_in_a_capture) {
  pool_type tight{gpumem::cuda_resource{device}, {.limit = 8 * MiB}};
  graph_type graphs{tight};
  auto* const holds = tight.allocate(b, 6 * MiB);
  auto const scope = tight.capture(graphs, a);
  begin_capture(a);
  { auto const served = tight.acquire(a, KiB).wait(); }
  EXPECT_EQ(tight.acquire(a, 4 * MiB).try_now().error().reason, outcome::exhausted);
  EXPECT_THROW((void)tight.acquire(a, 4 * MiB).wait(), gpumem::out_of_memory);
  auto const awaited = [&]() -> gpumem::task<bool> {
    try {
      auto const got = co_await tight.acquire(a, 4 * MiB);
    } catch (gpumem::out_of_memory const& e) { co_return e.reason() == outcome::exhausted; }
    co_return false;
  };
  EXPECT_TRUE(gpumem::sync_wait(awaited()));
  auto const both = tight.acquire_all({{b, KiB}, {a, 4 * MiB}}).wait_until(gpumem::detail::sync::time_point::max());
  EXPECT_EQ(both.error().reason, outcome::exhausted) << "all of its blocks or none, at once";
  EXPECT_EQ(tight.statistics().waiting, 0u);
  gpumem::limiting_adaptor limited{tight, {.limit = 2 * KiB}};
  auto const first = limited.acquire(a, 2 * KiB).wait();
  EXPECT_THROW((void)limited.acquire(a, KiB).wait(), gpumem::out_of_memory);
  end_capture(a);
  tight.deallocate(b, holds, 6 * MiB);
}

TEST_F(in_capture, capture_that_was_invalidated_is_an_error_of_the_driver) {
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  EXPECT_NE(cu().stream_query(a.get()), CUDA_SUCCESS);
  auto const refused = pool.try_allocate(a, KiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, outcome::driver_error);
  EXPECT_EQ(refused.error().code, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_THROW((void)pool.allocate(a, KiB), gpumem::cuda_error);
  CUgraph none = nullptr;
  EXPECT_EQ(cu().stream_end_capture(a.get(), &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(refusal(a), outcome::granted);
}

TEST_F(in_capture, closed_pool_refuses_requests_in_a_capture) {
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  auto* const p = pool.allocate(a, KiB);
  pool.close();
  EXPECT_EQ(refusal(a), outcome::closed);
  pool.deallocate(a, p, KiB);
  EXPECT_EQ(memory.statistics().live, 0u);
  end_capture(a);
}

TEST_F(in_capture, failure_in_a_capture_leaves_it_valid) {
  pool_type tight{gpumem::cuda_resource{device}, {.limit = 4 * MiB}};
  graph_type graphs{tight};
  auto const scope = tight.capture(graphs, a);
  begin_capture(a);
  EXPECT_THROW((void)tight.allocate(a, 8 * MiB), gpumem::out_of_memory);
  EXPECT_THROW((void)tight.allocate(a, KiB, 3), std::invalid_argument);
  EXPECT_EQ(tight.allocate(a, 0), nullptr);
  auto* const sync = tight.allocate_sync(KiB); // not of the capture
  EXPECT_FALSE(graphs.find(sync));
  tight.deallocate_sync(sync, KiB);
  end_capture(a);
}

// Two graphs share one memory: the second uses the ranges that the first one has freed. A third stream works meanwhile.
TEST_F(in_capture, graphs_that_share_memory_are_launched_again_and_again) {
  auto const captured = [&](int stamp, bool large) {
    auto const scope = pool.capture(memory, a);
    begin_capture(a);
    auto* const p = pool.allocate(a, 64 * KiB);
    write(a, p, 64 * KiB, stamp);
    join_streams(a, b);
    auto* const q = pool.allocate(b, 64 * KiB);
    write(b, q, 64 * KiB, stamp + 1);
    check(b, q, 64 * KiB, stamp + 1);
    pool.deallocate(b, q, 64 * KiB);
    auto* const again = pool.allocate(b, 64 * KiB);
    EXPECT_EQ(again, q);
    write(b, again, 64 * KiB, stamp + 2);
    check(a, p, 64 * KiB, stamp);
    pool.deallocate(a, p, 64 * KiB);
    check(b, again, 64 * KiB, stamp + 2);
    join_streams(b, a);
    pool.deallocate(b, again, 64 * KiB);
    auto const bytes = large ? 9 * MiB : 32 * KiB;
    auto* const r = pool.allocate(a, bytes);
    write(a, r, bytes, stamp + 3);
    check(a, r, bytes, stamp + 3);
    pool.deallocate(a, r, bytes);
    return end_capture(a);
  };
  std::array const graphs{captured(10, false), captured(20, true), captured(30, true)};
  EXPECT_EQ(memory.statistics().upstream_allocations, 2u);
  EXPECT_EQ(memory.trim(), 0u);
  pool.trim();
  gpumem::stream const c{device};
  for (int round = 0; round < 3; ++round) {
    for (auto const& each : graphs) {
      each.launch(a);
      auto* const p = pool.allocate(c, 64 * KiB);
      write(c, p, 64 * KiB, 99);
      pool.deallocate(c, p, 64 * KiB);
      simulator::step(3);
    }
  }
  simulator::run_until_idle();
  EXPECT_EQ(checks, 3 * 3 * 4);
  EXPECT_EQ(wrong, 0);
}

} // namespace
