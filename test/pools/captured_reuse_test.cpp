// Graph memory over the streams of a capture: which stream gets a range that another one has freed.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::stream_ref;
using gpumem::driver_api::driver_calls;
using gpumem_test::begin_capture;
using gpumem_test::captured_graph;
using gpumem_test::cu;
using gpumem_test::end_capture;
using gpumem_test::join_streams;
namespace simulator = gpumem::simulator;

class captured_reuse : public gpumem_test::scope_test {
protected:
  static constexpr std::size_t size = 64 * KiB;
  void* take(stream_ref on, std::size_t bytes = size) {
    auto* const p = memory.allocate(on, bytes);
    stamp_ = stamp_ % 200 + 1;
    write(on, p, bytes, stamp_);
    check(on, p, bytes, stamp_);
    return p;
  }
  void free(stream_ref on, void* p, std::size_t bytes = size) { memory.deallocate(on, p, bytes); }
  // The address that a request of the stream gets now.
  void* probe(stream_ref on, std::size_t bytes = size) {
    auto* const p = take(on, bytes);
    free(on, p, bytes);
    return p;
  }
  // Joins the streams to `a`, ends its capture, and launches the graph twice.
  captured_graph finish(std::vector<stream_ref> const& joined) {
    for (auto const each : joined) join_streams(each, a);
    auto graph = end_capture(a);
    graph.launch(a);
    graph.launch(a);
    simulator::run_until_idle();
    EXPECT_GT(checks, 0);
    EXPECT_EQ(wrong, 0);
    return graph;
  }

  gpumem::stream c{device};

private:
  int stamp_ = 0;
};

TEST_F(captured_reuse, stream_that_joins_after_the_free_gets_the_range) {
  begin_capture(a);
  auto* const p = take(a);
  free(a, p);
  join_streams(a, b);
  EXPECT_EQ(probe(b), p);
  EXPECT_EQ(memory.statistics().reuse_ordered, 1u);
  finish({b});
}

TEST_F(captured_reuse, stream_beside_the_free_does_not_get_the_range) {
  begin_capture(a);
  auto* const first = take(a);
  join_streams(a, b);
  auto* const p = take(a);
  free(a, p);
  auto* const beside = probe(b);
  EXPECT_NE(beside, p);
  EXPECT_EQ(probe(a), p) << "its own stream";
  join_streams(a, b);
  EXPECT_EQ(probe(b), beside) << "its own range first";
  auto* const other = take(b);
  EXPECT_EQ(probe(b), p) << "ordered now";
  free(a, first);
  free(b, other);
  EXPECT_NE(probe(a, 2 * size), p) << "a is not ordered after b";
  finish({b});
}

TEST_F(captured_reuse, order_passes_through_a_third_stream) {
  begin_capture(a);
  auto* const p = take(a);
  free(a, p);
  join_streams(a, c);
  auto* const between = take(c, 2 * size);
  join_streams(c, b);
  EXPECT_EQ(probe(b), p);
  check(c, between, 2 * size, 2);
  free(c, between, 2 * size);
  EXPECT_NE(probe(b, 2 * size), between) << "c has used it after the join";
  finish({b, c});
}

TEST_F(captured_reuse, range_that_moves_between_streams_keeps_their_order) {
  begin_capture(a);
  auto* const p = take(a);
  free(a, p);
  join_streams(a, b);
  join_streams(a, c);
  EXPECT_EQ(probe(b), p);
  EXPECT_NE(probe(c), p) << "b uses it beside c";
  EXPECT_NE(probe(a), p) << "a is not ordered after b";
  join_streams(b, c);
  auto* const other = take(c);
  EXPECT_NE(other, p) << "its own range first";
  EXPECT_EQ(probe(c), p);
  finish({b, c});
}

TEST_F(captured_reuse, declared_uses_end_at_their_declaration) {
  begin_capture(a);
  auto* const p = take(a);
  join_streams(a, b);
  check(b, p, size, 1);
  memory.record_use(p, b);
  check(a, p, size, 1);
  free(a, p);
  EXPECT_NE(probe(a), p) << "b may still read it";
  EXPECT_NE(probe(b), p) << "nor is b ordered after the free";
  join_streams(b, c);
  EXPECT_NE(take(c), p) << "after one of the uses";
  join_streams(a, c);
  EXPECT_EQ(probe(c), p) << "after both";
  finish({b, c});
}

TEST_F(captured_reuse, stream_that_frees_gets_the_range_after_the_declared_use) {
  begin_capture(a);
  auto* const p = take(a);
  join_streams(a, b);
  check(b, p, size, 1);
  memory.record_use(p, b);
  free(a, p);
  join_streams(b, a);
  EXPECT_EQ(probe(a), p);
  finish({b});
}

TEST_F(captured_reuse, uses_on_more_than_four_streams_keep_the_memory_from_reuse) {
  std::vector<gpumem::stream> others;
  for (int i = 0; i < 5; ++i) others.emplace_back(device);
  begin_capture(a);
  std::vector<stream_ref> joined;
  for (std::size_t count : {3u, 4u, 5u}) {
    auto* const p = take(a);
    for (std::size_t i = 0; i < count; ++i) {
      join_streams(a, others[i]);
      simulator::work(others[i], {simulator::read(p, size)}, std::chrono::microseconds{1});
      memory.record_use(p, others[i]);
    }
    free(a, p);
    for (std::size_t i = 0; i < count; ++i) join_streams(others[i], a);
    join_streams(a, b);
    EXPECT_EQ(probe(b) == p, count == 3) << count << " streams, and that of the block";
    EXPECT_NE(probe(a), p) << "a is not ordered after b";
    join_streams(b, a);
    take(a); // and keeps it, so that the next block is another one
  }
  for (auto const& each : others) joined.emplace_back(each);
  joined.emplace_back(b);
  finish(joined);
}

TEST_F(captured_reuse, memory_freed_outside_a_capture_serves_its_stream_only) {
  auto* const eager = take(a);
  begin_capture(a);
  simulator::work(a, {}, std::chrono::microseconds{1});
  auto* const inside = take(a);
  finish({});
  free(a, eager);
  free(a, inside);
  begin_capture(a);
  simulator::work(a, {}, std::chrono::microseconds{1});
  join_streams(a, b);
  auto* const p = take(b, 2 * size);
  EXPECT_NE(p, eager);
  EXPECT_NE(p, inside);
  EXPECT_EQ(take(a, 2 * size), eager) << "both as one";
  finish({b});
}

TEST_F(captured_reuse, memory_used_before_the_capture_serves_its_stream_only) {
  auto* const p = take(a); // the graph may be launched beside this work
  begin_capture(a);
  simulator::work(a, {}, std::chrono::microseconds{1});
  free(a, p);
  join_streams(a, b);
  EXPECT_NE(probe(b), p);
  EXPECT_EQ(probe(a), p);
  finish({b});
}

TEST_F(captured_reuse, use_declared_before_its_stream_joins_never_ends) {
  begin_capture(a);
  auto* const p = take(a);
  auto* const q = take(a);
  for (auto* const each : {p, q}) memory.record_use(each, b);
  free(a, p);
  join_streams(a, b);
  EXPECT_NE(probe(b), p);
  EXPECT_NE(take(a), p);
  simulator::work(b, {simulator::read(q, size)}, std::chrono::microseconds{1});
  auto* const held = take(b);
  free(b, q);
  EXPECT_EQ(take(b), q) << "the stream that frees it is ordered after its own use";
  EXPECT_NE(held, q);
  finish({b});
}

// As a garbage collector that drops a tensor of another thread.
TEST_F(captured_reuse, memory_freed_by_another_thread_serves_its_stream_only) {
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  auto* const p = take(a);
  auto* const q = take(a);
  memory.record_use(q, a);
  std::thread{[&] {
    free(a, p);
    memory.try_deallocate(q);
  }}.join();
  join_streams(a, b);
  auto* const other = take(b);
  EXPECT_NE(other, p);
  EXPECT_NE(other, q);
  EXPECT_EQ(take(a, 2 * size), p) << "both as one";
  finish({b});
}

TEST_F(captured_reuse, memory_freed_in_a_capture_serves_later_captures) {
  begin_capture(a);
  auto* const low = take(a);
  join_streams(a, b);
  auto* const high = take(b);
  free(a, low);
  EXPECT_EQ(take(a), low) << "so that a has none";
  free(b, high);
  auto const kept = finish({b});
  auto* const p = take(c);
  EXPECT_NE(p, high) << "not outside a capture";
  free(c, p);
  begin_capture(a);
  EXPECT_EQ(probe(a), high);
  join_streams(a, c);
  finish({c});
}

TEST_F(captured_reuse, joined_ranges_wait_for_the_newest_end) {
  begin_capture(a);
  auto* const low = take(a, 512 * KiB);
  auto* const high = take(a, 512 * KiB);
  free(a, low, 512 * KiB);
  join_streams(a, b);
  simulator::work(a, {simulator::write(high, 512 * KiB)}, std::chrono::microseconds{1});
  free(a, high, 512 * KiB); // joins the lower one
  EXPECT_NE(probe(b, 512 * KiB), low);
  join_streams(a, b);
  EXPECT_EQ(probe(b, MiB), low);
  finish({b});
}

TEST_F(captured_reuse, smallest_range_that_fits_is_taken) {
  begin_capture(a);
  auto* const large = take(a, 6 * MiB);
  auto* const small = take(a, 3 * MiB);
  auto* const middle = take(a, 4 * MiB);
  for (auto const [p, bytes] : {std::pair{large, 6 * MiB}, {small, 3 * MiB}, {middle, 4 * MiB}}) free(a, p, bytes);
  join_streams(a, b);
  EXPECT_EQ(probe(b, 4 * MiB - KiB), middle);
  EXPECT_EQ(memory.statistics().upstream_allocations, 3u);
  finish({b});
}

TEST_F(captured_reuse, streams_of_each_kind_share_the_memory_of_a_scope) {
  auto const foreign = make_foreign(), handle = make_foreign();
  auto const adopted = gpumem::stream::adopt(handle.get());
  auto const scope = pool.capture(memory, a);
  begin_capture(a);
  void* p = take(a);
  pool.deallocate(a, p, size);
  stream_ref last = a;
  for (stream_ref const on : {foreign, stream_ref{adopted}, stream_ref{CU_STREAM_PER_THREAD}, stream_ref{b}}) {
    join_streams(last, on);
    auto* const next = pool.allocate(on, size);
    EXPECT_EQ(next, p);
    write(on, next, size, 9);
    pool.deallocate(on, next, size);
    last = on;
  }
  EXPECT_EQ(memory.statistics().reuse_ordered, 4u);
  finish({last});
  cu().stream_destroy(foreign.get());
}

TEST_F(captured_reuse, own_range_costs_one_question_at_each_call) {
  begin_capture(a);
  join_streams(a, b);
  free(a, take(a));
  auto const asked = [] { return driver_calls("cuStreamGetCaptureInfo") + driver_calls("cuGraphNodeGetDependencies"); };
  auto const before = asked(), dependencies = driver_calls("cuGraphNodeGetDependencies");
  auto* const p = take(a);
  EXPECT_EQ(asked(), before + 1) << "the capture";
  free(a, p);
  EXPECT_EQ(asked(), before + 2) << "the end of the use";
  auto* const other = take(b, 2 * MiB); // no range of the other stream fits
  EXPECT_EQ(driver_calls("cuGraphNodeGetDependencies"), dependencies);
  free(b, other, 2 * MiB);
  finish({b});
}

TEST_F(captured_reuse, many_frees_in_one_capture_keep_their_order) {
  begin_capture(a);
  auto* const declared = take(a, 2 * MiB);
  join_streams(a, b);
  simulator::work(b, {simulator::read(declared, 2 * MiB)}, std::chrono::microseconds{1});
  memory.record_use(declared, b);
  std::array<void*, 500> blocks{};
  for (auto& each : blocks) each = take(a, KiB);
  for (std::size_t i = 0; i < blocks.size(); i += 2) { // so that they do not join
    simulator::work(a, {simulator::write(blocks[i], KiB)}, std::chrono::microseconds{1});
    free(a, blocks[i], KiB);
    if (i == 100) join_streams(a, b);
  }
  for (int i = 0; i < 60; ++i) take(b, KiB);
  EXPECT_EQ(memory.statistics().reuse_ordered, 51u);
  free(a, declared, 2 * MiB);
  join_streams(a, c);
  EXPECT_NE(probe(c, 2 * MiB), declared) << "c is not ordered after b";
  gpumem::stream d{device};
  join_streams(a, d);
  join_streams(b, d);
  EXPECT_EQ(probe(d, 2 * MiB), declared) << "the end of the declared use was kept";
  finish({b, c, d});
}

} // namespace
