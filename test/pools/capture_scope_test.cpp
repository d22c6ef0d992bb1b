// Capture scopes of a pool: which streams and which resources they serve.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
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

class capture_scope : public gpumem_test::scope_test {};

// The pool's bound is for blocks. The graph memory draws chunks of the pool, which are larger.
TEST_F(capture_scope, largest_block_is_the_same_inside_and_outside) {
  for (auto const& [hardened, largest] : {std::pair{false, 1000 * KiB}, {false, 100 * KiB}, {true, 100 * KiB}}) {
    gpumem::pool_resource subject{gpumem::device::current(),
                                  {.largest_block = largest, .hardened = {.enabled = hardened}}};
    gpumem::graph_resource inside{subject};
    auto const scope = subject.capture(inside, a);
    for (bool const captures : {false, true}) {
      if (captures) begin_capture(a);
      for (auto const bytes : {std::size_t{1}, largest - 1, largest}) {
        auto const p = subject.try_allocate(a, bytes);
        ASSERT_TRUE(p) << bytes << ", captures: " << captures << ": " << to_string(p.error().reason);
        EXPECT_EQ(inside.find(*p).has_value(), captures);
        subject.deallocate(a, *p, bytes);
      }
      EXPECT_EQ(subject.try_allocate(a, 2 * largest).error().reason, outcome::too_large);
      if (captures) end_capture(a);
    }
  }
}

TEST_F(capture_scope, fixed_blocks_serve_a_capture) {
  gpumem::fixed_size_resource subject{gpumem::cuda_resource{}, {.block_size = 64 * KiB}};
  gpumem::graph_resource inside{subject};
  auto const scope = subject.capture(inside, a);
  begin_capture(a);
  auto* const p = subject.allocate(a, 64 * KiB);
  EXPECT_TRUE(inside.find(p));
  subject.deallocate(a, p, 64 * KiB);
  end_capture(a);
  auto* const outside = subject.allocate(a, 64 * KiB);
  subject.deallocate(a, outside, 64 * KiB);
}

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

TEST_F(capture_scope, memory_freed_before_the_capture_serves_it) {
  auto const foreign = make_foreign(), handle = make_foreign();
  auto const adopted = gpumem::stream::adopt(handle.get());
  for (stream_ref const on : {stream_ref{a}, stream_ref{adopted}, foreign}) {
    gpumem::pool_resource subject{gpumem::device::current()};
    gpumem::graph_resource inside{subject};
    subject.deallocate(on, subject.allocate(on, 8 * MiB), 8 * MiB);
    auto const reserved = subject.statistics().reserved;
    auto const scope = subject.capture(inside, on);
    simulator::run_until_idle();
    begin_capture(on);
    subject.deallocate(on, subject.allocate(on, 6 * MiB), 6 * MiB);
    end_capture(on);
    EXPECT_EQ(subject.statistics().reserved, reserved);
  }
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
  auto const* const timeline = &a.key().identity().timeline();
  {
    auto const scope = pool.capture(memory, b);
    EXPECT_EQ(&gpumem::extend::identify(a).identity().timeline(), timeline);
    EXPECT_EQ(&a.key().identity().timeline(), timeline);
    auto const during = gpumem::stream{device};
    EXPECT_EQ(&gpumem::extend::identify(during).identity().timeline(), &during.key().identity().timeline());
    pool.deallocate(a, p, 8 * MiB);
    EXPECT_EQ(pool.allocate(a, 8 * MiB), p) << "the same stream, whose work still runs";
    auto const before = driver_calls();
    EXPECT_EQ(&gpumem::extend::identify(a).identity().timeline(), timeline);
    EXPECT_GT(driver_calls(), before);
    begin_capture(a);
    EXPECT_TRUE(a.key().identity().capturing());
    end_capture(a);
  }
  auto const before = driver_calls();
  EXPECT_EQ(&gpumem::extend::identify(a).identity().timeline(), timeline);
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
    auto* const p = resource.allocate(a, bytes, 256);
    EXPECT_TRUE(in_graph(p));
    resource.deallocate(a, p, bytes, 256);
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

} // namespace
