// Capture scopes of a pool: which requests they serve, frees through the pool, and graphs that are launched.
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

class capture_scope : public gpumem_test::capture_test {
protected:
  bool in_graph(void const* p) const { return memory.find(p).has_value(); }
  outcome refusal(stream_ref on) {
    auto const got = pool.try_allocate(on, KiB);
    if (!got) return got.error().reason;
    pool.deallocate(on, *got, KiB);
    return outcome::granted;
  }
  graph_type memory{pool};
};

TEST_F(capture_scope, streams_of_each_kind_are_served_however_the_capture_begins) {
  auto const foreign = make_foreign(), handle = make_foreign();
  auto const adopted = gpumem::stream::adopt(handle.get());
  for (stream_ref const on : {stream_ref{a}, stream_ref{adopted}, foreign, stream_ref{CU_STREAM_PER_THREAD}}) {
    auto* const before = pool.allocate(on, KiB);
    auto const scope = pool.capture(memory, on);
    auto* const outside = pool.allocate(on, KiB);
    EXPECT_FALSE(in_graph(outside)) << "the stream does not capture yet";
    begin_capture(on);
    auto* const inside = pool.allocate(on, KiB);
    EXPECT_TRUE(in_graph(inside));
    pool.deallocate(on, inside, KiB);
    EXPECT_EQ(pool.allocate(on, KiB), inside) << "free at once";
    pool.deallocate(on, inside, KiB);
    end_capture(on);
    EXPECT_EQ(refusal(on), outcome::granted);
    for (auto* const each : {before, outside}) pool.deallocate(on, each, KiB);
  }
  a.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(refusal(a), outcome::capture_unsupported) << "without a scope";
  auto scope = std::make_unique<gpumem::capture_scope>(pool.capture(memory, a)); // also inside the capture
  EXPECT_EQ(refusal(a), outcome::granted);
  scope.reset();
  EXPECT_EQ(refusal(a), outcome::capture_unsupported);
  cu().graph_destroy(a.end_capture());
  cu().stream_destroy(foreign.get());
}

TEST_F(capture_scope, streams_that_joined_the_capture_are_served) {
  auto const foreign = make_foreign();
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  for (stream_ref const joined : {stream_ref{b}, foreign}) {
    auto* const before = pool.allocate(joined, KiB);
    EXPECT_FALSE(in_graph(before)) << "it has not joined";
    pool.deallocate(joined, before, KiB);
    join_streams(a, joined);
    auto* const p = pool.allocate(joined, KiB);
    EXPECT_TRUE(in_graph(p));
    pool.deallocate(joined, p, KiB);
    std::thread{[&] {
      gpumem::device_guard const here{device};
      auto* const q = pool.allocate(joined, KiB);
      EXPECT_EQ(q, p) << "also from another thread";
      pool.deallocate(joined, q, KiB);
    }}.join();
    join_streams(joined, a);
  }
  end_capture(a);
  cu().stream_destroy(foreign.get());
}

TEST_F(capture_scope, streams_of_other_captures_are_refused) {
  auto const foreign = make_foreign();
  auto const scope = pool.capture(memory, a);
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  for (stream_ref const other : {stream_ref{b}, foreign}) {
    begin_capture(other, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(refusal(other), outcome::capture_unsupported);
    EXPECT_THROW((void)pool.allocate(other, KiB), gpumem::acquire_error);
    end_capture(other);
    EXPECT_EQ(refusal(other), outcome::granted);
  }
  EXPECT_EQ(refusal(a), outcome::granted);
  end_capture(a);
  cu().stream_destroy(foreign.get());
}

TEST_F(capture_scope, own_stream_keeps_its_identity) {
  auto* const p = pool.allocate(a, 8 * MiB);
  write(a, p, 8 * MiB, 1);
  auto const* const timeline = &a.key().timeline();
  {
    auto const scope = pool.capture(memory, b);
    EXPECT_EQ(&gpumem::extend::identify(a).timeline(), timeline);
    EXPECT_EQ(&a.key().timeline(), timeline);
    auto const during = gpumem::stream{device};
    EXPECT_EQ(&gpumem::extend::identify(during).timeline(), &during.key().timeline());
    pool.deallocate(a, p, 8 * MiB);
    EXPECT_EQ(pool.allocate(a, 8 * MiB), p) << "the same stream, whose work still runs";
    auto const before = driver_calls();
    EXPECT_EQ(&gpumem::extend::identify(a).timeline(), timeline);
    EXPECT_GT(driver_calls(), before);
    begin_capture(a);
    EXPECT_TRUE(a.key().capturing());
    end_capture(a);
  }
  auto const before = driver_calls();
  EXPECT_EQ(&gpumem::extend::identify(a).timeline(), timeline);
  EXPECT_EQ(driver_calls(), before) << "after the scope an own stream is known without a driver call";
  pool.deallocate(a, p, 8 * MiB);
}

TEST_F(capture_scope, adopted_streams_come_and_go_while_a_scope_is_open) {
  auto const handle = make_foreign();
  std::optional<gpumem::stream> adopted;
  auto scope = std::make_unique<gpumem::capture_scope>(pool.capture(memory, a));
  adopted = gpumem::stream::adopt(handle.get());
  scope.reset();
  auto before = driver_calls();
  (void)gpumem::extend::identify(handle);
  EXPECT_EQ(driver_calls(), before);
  scope = std::make_unique<gpumem::capture_scope>(pool.capture(memory, a));
  adopted.reset();
  scope.reset();
  before = driver_calls();
  (void)gpumem::extend::identify(handle);
  EXPECT_GT(driver_calls(), before) << "nobody promises any more that the stream lives";
  cu().stream_destroy(handle.get());
}

TEST_F(capture_scope, handles_adaptors_and_other_pools_of_the_family_are_served) {
  auto const scope = pool.capture(memory, a);
  auto copy = pool;
  gpumem::any_pool erased{pool};
  gpumem::statistics_adaptor counted{pool};
  gpumem::limiting_adaptor limited{counted, {.limit = MiB}};
  gpumem::statistics_adaptor over_erased{erased};
  gpumem::binning_resource binned{pool, {.min_exponent = 8, .max_exponent = 10}};
  gpumem::fallback_adaptor second{pool, gpumem::pool_resource{device}};
  gpumem::fallback_adaptor unsafe{pool, gpumem::cuda_resource{device}};
  begin_capture(a);
  auto const served = [&](auto& resource, std::size_t bytes) {
    auto* const p = resource.allocate(a, bytes);
    EXPECT_TRUE(in_graph(p));
    resource.deallocate(a, p, bytes);
  };
  served(copy, KiB);
  served(erased, KiB);
  served(counted, KiB);
  served(limited, KiB);
  served(over_erased, KiB);
  served(second, KiB);
  served(binned, 4 * KiB); // beyond the bins
  EXPECT_EQ(counted.counters().bytes.total, 2 * KiB);
  EXPECT_EQ(counted.counters().bytes.value, 0);
  EXPECT_EQ(limited.try_allocate(a, 2 * MiB).error().reason, outcome::too_large);
  EXPECT_EQ(binned.try_allocate(a, 200).error().reason, outcome::capture_unsupported) << "a bin is a pool of its own";
  EXPECT_EQ(unsafe.try_allocate(a, KiB).error().reason, outcome::capture_unsupported);
  EXPECT_EQ(gpumem::cuda_resource{device}.try_allocate(a, KiB).error().reason, outcome::capture_unsupported);
  end_capture(a);
}

TEST_F(capture_scope, each_pool_of_the_family_has_scopes) {
  auto const check_pool = [&](auto of, std::size_t bytes) {
    gpumem::graph_resource graphs{of};
    auto const scope = of.capture(graphs, a);
    begin_capture(a);
    auto* const p = of.allocate(a, bytes);
    EXPECT_TRUE(graphs.find(p).has_value());
    of.deallocate(a, p, bytes);
    end_capture(a);
    auto* const q = of.allocate(a, bytes);
    EXPECT_FALSE(graphs.find(q).has_value());
    of.deallocate(a, q, bytes);
  };
  gpumem::cuda_resource const upstream{device};
  check_pool(gpumem::arena_resource{upstream}, KiB);
  check_pool(gpumem::pool_resource{upstream, {.hardened = {.enabled = true}}}, KiB);
  check_pool(gpumem::pool_resource{upstream, {.pass_through = true}}, KiB);
  gpumem::fixed_size_resource const fixed{upstream, {.block_size = 4 * MiB}};
  check_pool(fixed, KiB);
  gpumem::graph_resource graphs{fixed};
  auto of = fixed;
  auto const scope = of.capture(graphs, a);
  begin_capture(a);
  EXPECT_EQ(of.try_allocate(a, 4 * MiB + 1).error().reason, outcome::too_large) << "as outside a capture";
  end_capture(a);
}

TEST_F(capture_scope, blocks_may_be_freed_through_the_pool_anywhere) {
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

TEST_F(capture_scope, misuse_through_the_pool_is_reported) {
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

TEST_F(capture_scope, find_and_record_use_of_the_pool_reach_graph_memory) {
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

TEST_F(capture_scope, other_memory_freed_in_a_capture_is_deferred) {
  auto const foreign = make_foreign();
  for (stream_ref const on : {stream_ref{a}, foreign}) {
    auto* const p = pool.allocate(on, 16 * MiB);
    auto* const small = pool.allocate(on, KiB);
    auto held = pool.acquire(on, KiB).wait();
    auto const scope = pool.capture(memory, on);
    begin_capture(on);
    auto const records = driver_calls("cuEventRecord");
    auto const cached = pool.statistics().cached;
    auto const identified = [&](auto free) {
      auto const before = driver_calls();
      free();
      return driver_calls() - before;
    };
    EXPECT_LE(identified([&] { pool.deallocate(on, p, 16 * MiB); }), 6u) << "only to identify the stream";
    EXPECT_LE(identified([&] { pool.deallocate(on, small, KiB); }), 6u);
    held.reset();
    EXPECT_EQ(pool.statistics().cached, cached) << "a cache would give it out again while the capture runs";
    EXPECT_EQ(driver_calls("cuEventRecord"), records);
    end_capture(on);
    auto* const again = pool.allocate(on, 16 * MiB);
    EXPECT_EQ(again, p) << "a call outside the capture completes the free";
    pool.deallocate(on, again, 16 * MiB);
  }
  simulator::run_until_idle();
  cu().stream_destroy(foreign.get());
}

TEST_F(capture_scope, request_never_waits_in_a_capture) {
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

TEST_F(capture_scope, wrong_scopes_are_refused) {
  auto const scope = pool.capture(memory, a);
  EXPECT_THROW((void)pool.capture(memory, a), std::invalid_argument) << "nested";
  graph_type other_memory{pool};
  EXPECT_THROW((void)pool.capture(other_memory, a), std::invalid_argument);
  pool_type other_pool{device};
  EXPECT_THROW((void)other_pool.capture(memory, b), std::invalid_argument) << "memory of another pool";
  for (auto* const handle : {static_cast<CUstream>(nullptr), CU_STREAM_LEGACY})
    EXPECT_THROW((void)pool.capture(memory, stream_ref{handle}), std::invalid_argument);
  gpumem::graph_resource others{other_pool};
  auto const beside = other_pool.capture(others, a); // another pool, the same stream
  auto const on_b = pool.capture(memory, b);
  begin_capture(a);
  auto* const p = other_pool.allocate(a, KiB);
  EXPECT_TRUE(others.find(p));
  other_pool.deallocate(a, p, KiB);
  EXPECT_EQ(refusal(a), outcome::granted);
  end_capture(a);
}

TEST_F(capture_scope, moved_scope_stays_open) {
  auto scope = pool.capture(memory, a);
  auto moved = std::move(scope);
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(refusal(a), outcome::granted);
  moved = pool.capture(memory, b); // closes that of a
  EXPECT_EQ(refusal(a), outcome::capture_unsupported);
  end_capture(a);
}

TEST_F(capture_scope, two_scopes_of_one_capture_serve_their_own_streams) {
  graph_type second{pool};
  auto const of_a = pool.capture(memory, a), of_b = pool.capture(second, b);
  gpumem::stream const c{device};
  begin_capture(a);
  join_streams(a, b);
  join_streams(a, c);
  auto* const p = pool.allocate(b, KiB);
  auto* const q = pool.allocate(c, KiB);
  EXPECT_TRUE(second.find(p));
  EXPECT_TRUE(in_graph(q)) << "the older scope";
  pool.deallocate(b, p, KiB);
  pool.deallocate(c, q, KiB);
  join_streams(b, a);
  join_streams(c, a);
  end_capture(a);
}

TEST_F(capture_scope, capture_that_was_invalidated_is_an_error_of_the_driver) {
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

TEST_F(capture_scope, closed_pool_refuses_requests_in_a_capture) {
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  auto* const p = pool.allocate(a, KiB);
  pool.close();
  EXPECT_EQ(refusal(a), outcome::closed);
  pool.deallocate(a, p, KiB);
  EXPECT_EQ(memory.statistics().live, 0u);
  end_capture(a);
}

TEST_F(capture_scope, failure_in_a_capture_leaves_it_valid) {
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

TEST_F(capture_scope, scopes_on_several_threads_serve_their_own_captures) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      gpumem::device_guard const here{device};
      gpumem::stream const own{device}, side{device};
      graph_type graphs{pool};
      for (int round = 0; round < 10; ++round) {
        auto const scope = pool.capture(graphs, own);
        begin_capture(own, round % 2 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL);
        join_streams(own, side);
        auto* const p = pool.allocate(own, 100 * KiB);
        auto* const q = pool.allocate(side, 3 * MiB);
        EXPECT_TRUE(graphs.find(p) && graphs.find(q));
        pool.deallocate(side, q, 3 * MiB);
        join_streams(side, own);
        pool.deallocate(own, p, 100 * KiB);
        end_capture(own);
      }
      EXPECT_EQ(graphs.statistics().upstream_allocations, 2u) << "each round uses the memory of the first one";
    });
  }
  for (auto& each : threads) each.join();
}

// Two graphs share one memory: the second uses the ranges that the first one has freed. A third stream works meanwhile.
TEST_F(capture_scope, graphs_that_share_memory_are_launched_again_and_again) {
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
