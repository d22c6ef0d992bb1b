// The uses of graph memory by themselves: their ends, and the ranges that a stream may have.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <chrono>
#include <cstddef>

import gpumem;

namespace {

using gpumem::detail::block;
using gpumem::detail::graph_uses;
using gpumem_test::begin_capture;
using gpumem_test::end_capture;
using gpumem_test::join_streams;
constexpr auto by_free = graph_uses::ended_by::free;

// One chunk of 4 KiB.
class graph_uses_test : public gpumem_test::capture_test {
protected:
  graph_uses_test() { chunks.add({.base = 0x10000, .bytes = 4 * KiB}, ranges); }
  static void work(gpumem::stream_ref on) { gpumem_test::simulator::work(on, {}, std::chrono::microseconds{1}); }
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  // Splits a live block of 1 KiB off the ready memory, and notes in which capture of the stream it is.
  block& allocate(gpumem::stream const& on) {
    std::size_t offset = 0;
    auto& taken = ranges.split_off(*ranges.lists().ready().bins().find(KiB, 256, offset), 0, KiB);
    taken.stream = &of(on);
    uses.note_allocation(taken, uses.note_request(on.key()));
    return taken;
  }
  block& free(block& live, gpumem::stream const& on) {
    uses.end(live, on.key(), by_free);
    uses.forget(live);
    return ranges.free(live, gpumem::detail::range_allocator::coalescing::same_streams);
  }
  block* find(gpumem::stream const& on) {
    uses.note_request(on.key());
    return uses.find_ordered(on.key(), KiB, 256).range;
  }

  gpumem::detail::range_allocator ranges;
  gpumem::detail::graph_chunks chunks;
  graph_uses uses{ranges, chunks};
};

TEST_F(graph_uses_test, range_serves_a_stream_that_joins_after_its_use) {
  begin_capture(a);
  join_streams(a, b);
  auto& live = allocate(a);
  work(a);
  auto& range = free(live, a);
  EXPECT_EQ(find(b), nullptr) << "b has joined before the use";
  join_streams(a, b);
  EXPECT_EQ(find(b), &range);
  join_streams(b, a);
  end_capture(a);
}

TEST_F(graph_uses_test, declared_use_without_an_end_keeps_the_range_from_all_streams) {
  auto& live = allocate(a);
  uses.end(live, b.key(), graph_uses::ended_by::declaration);
  auto& range = free(live, a);
  EXPECT_EQ(range.uses.find(of(b))->newest, gpumem::detail::captured_order::no_end);
  begin_capture(a);
  work(a);
  EXPECT_EQ(find(a), nullptr);
  end_capture(a);
}

TEST_F(graph_uses_test, capture_of_a_block_is_known_until_the_block_is_freed) {
  auto& outside = allocate(a);
  begin_capture(a);
  auto& inside = allocate(a);
  EXPECT_EQ(uses.capture_worked_on_here(outside), 0u);
  EXPECT_NE(uses.capture_worked_on_here(inside), 0u);
  uses.forget(inside);
  EXPECT_EQ(uses.capture_worked_on_here(inside), 0u);
  end_capture(a);
}

TEST_F(graph_uses_test, streams_are_found_by_their_ids) {
  EXPECT_EQ(uses.find_stream(a.key().identity().id()), nullptr);
  uses.note_request(a.key());
  EXPECT_EQ(uses.find_stream(a.key().identity().id()), &of(a));
  EXPECT_EQ(uses.find_stream(b.key().identity().id()), nullptr);
}

} // namespace
