// Pools of PyTorch in captures: memory that stays the graph's, its reuse across streams, and earlier states.
// SPDX-License-Identifier: Apache-2.0
#include "torch_pools_fixture.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace {

class torch_captures : public torch_pools {};

// Memory that a capture gets stays the graph's, and is reused in the order of its stream within the pool.
TEST_F(torch_captures, captures_get_memory_that_stays) {
  auto* const before = block(mib);
  std::vector<CUgraph> graphs;
  std::vector<void*> addresses;
  for (int i = 0; i < 2; ++i) {
    begin(first);
    begin_capture();
    auto* const one = block(4 * mib);
    free_block(one);
    auto* const two = block(4 * mib);
    EXPECT_EQ(one, two);
    EXPECT_EQ(pool_of(two), first);
    if (i == 0) free_block(before); // of memory outside
    gpumem_torch_empty_cache();
    graphs.push_back(end_capture());
    end(first);
    addresses.push_back(two);
    free_block(two);
  }
  EXPECT_EQ(addresses[0], addresses[1]);
  empty_cache();
  EXPECT_GE(figures(device).reserved.current, 4 * mib) << "the graphs may be launched";
  release(first);
  release(first);
  for (auto* const each : graphs) destroy_graph(each);
}

// Another library captures meanwhile, on a stream of its own. A graph may still use the memory: the call waits for it.
TEST_F(torch_captures, end_of_graph_memory_waits_for_the_device_and_ends_no_capture) {
  begin(first);
  begin_capture();
  free_block(block(4 * mib));
  destroy_graph(end_capture());
  end(first);
  release(first);
  auto* const other = make_stream(device);
  for (auto const mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    ASSERT_EQ(driver<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(other, mode), CUDA_SUCCESS);
    simulator::work(stream, {}, milliseconds{1});
    empty_cache();
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      EXPECT_EQ(simulator::run_until_idle(), 0u) << "the work may use the graph memory";
    }
    CUgraph graph = nullptr;
    EXPECT_EQ(driver<decltype(&cuStreamEndCapture)>("cuStreamEndCapture")(other, &graph), CUDA_SUCCESS);
    destroy_graph(graph);
  }
  destroy(other);
}

// As with graph_capture_record_stream_reuse of PyTorch.
TEST_F(torch_captures, blocks_with_recorded_streams_are_used_again_in_the_order_of_the_graph) {
  auto* const side = make_stream(device);
  auto const on_side = [&](std::size_t bytes) { return allocate_block(bytes, device, side, promises); };
  begin(first);
  begin_capture();
  auto* const inside = block(3 * mib);
  simulator::work(stream, {simulator::write(inside, 3 * mib)});
  join(stream, side);
  simulator::work(side, {simulator::read(inside, 3 * mib)});
  ASSERT_EQ(gpumem_torch_record_block_stream(inside, side, -1), GPUMEM_GRANTED);
  simulator::work(stream, {simulator::read(inside, 3 * mib)});
  free_block(inside);
  EXPECT_EQ(figures(device).blocks[GPUMEM_TORCH_ALL].current, 0u);
  auto* const beside = block(3 * mib);
  EXPECT_NE(beside, inside) << "the side stream may still read it";
  join(side, stream);
  auto* const again = block(3 * mib);
  EXPECT_EQ(again, inside);
  simulator::work(stream, {simulator::write(again, 3 * mib)});
  free_block(again);
  auto* const other = on_side(3 * mib);
  EXPECT_NE(other, again);
  join(stream, side);
  free_block(other);
  auto* const first_of_side = on_side(3 * mib);
  auto* const second_of_side = on_side(3 * mib);
  EXPECT_EQ(first_of_side, other);
  EXPECT_EQ(second_of_side, again) << "without a recorded stream";
  simulator::work(side, {simulator::write(second_of_side, 3 * mib)});
  join(side, stream);
  auto* const graph = end_capture();
  end(first);
  for (auto* const each : {beside, first_of_side, second_of_side}) free_block(each);
  release(first);
  destroy_graph(graph);
}

TEST_F(torch_captures, functions_of_a_plug_in_keep_the_order_of_the_graph) {
  auto* const side = make_stream(device);
  begin(first);
  begin_capture();
  auto* const inside = gpumem_torch_allocate(3 * mib, device, stream);
  simulator::work(stream, {simulator::write(inside, 3 * mib)});
  join(stream, side);
  simulator::work(side, {simulator::read(inside, 3 * mib)});
  gpumem_torch_record_stream(inside, side);
  gpumem_torch_free(inside, 3 * mib, device, stream);
  auto* const beside = gpumem_torch_allocate(3 * mib, device, stream);
  EXPECT_NE(beside, inside);
  join(side, stream);
  auto* const again = gpumem_torch_allocate(3 * mib, device, stream);
  EXPECT_EQ(again, inside);
  simulator::work(stream, {simulator::write(again, 3 * mib)});
  auto* const graph = end_capture();
  end(first);
  for (auto* const each : {beside, again}) gpumem_torch_free(each, 3 * mib, device, stream);
  release(first);
  destroy_graph(graph);
}

TEST_F(torch_captures, blocks_outside_the_order_of_a_graph_wait_for_the_end_of_a_capture) {
  auto* const side = make_stream(device);
  auto* const elsewhere = make_stream(device);
  auto* const outside = block(3 * mib); // not of the graph
  ASSERT_EQ(gpumem_torch_record_block_stream(outside, side, -1), GPUMEM_GRANTED);
  begin(first);
  begin_capture();
  join(stream, side);
  auto* const inside = block(3 * mib);
  for (auto* const each : {side, elsewhere}) // of which one captures
    ASSERT_EQ(gpumem_torch_record_block_stream(inside, each, -1), GPUMEM_GRANTED);
  free_block(outside);
  free_block(inside);
  EXPECT_EQ(figures(device).blocks[GPUMEM_TORCH_ALL].current, 0u);
  join(side, stream);
  auto* const next = block(3 * mib);
  EXPECT_NE(next, inside);
  auto* const graph = end_capture();
  end(first);
  free_block(next);
  free_block(block(1000)); // completes the frees
  EXPECT_EQ(statistics(device).live, figures(device).reserved.current - figures(device).free.current);
  release(first);
  destroy_graph(graph);
}

// An earlier kernel of the recorded stream may still run when the graph is launched.
TEST_F(torch_captures, blocks_from_before_a_capture_wait_for_its_end) {
  free_block(block(1000)); // a stream that captures cannot be asked for its identity
  auto* const side = make_stream(device);
  begin(first);
  begin_capture();
  auto* const early = block(3 * mib);
  auto* const graph = end_capture();
  ASSERT_EQ(gpumem_torch_record_block_stream(early, side, -1), GPUMEM_GRANTED);
  begin_capture();
  join(stream, side);
  free_block(early);
  EXPECT_EQ(figures(device).blocks[GPUMEM_TORCH_ALL].current, 0u);
  join(side, stream);
  auto* const next = block(3 * mib);
  EXPECT_NE(next, early);
  auto* const later = end_capture();
  free_block(block(1000)); // completes the free
  EXPECT_EQ(block(3 * mib), early);
  end(first);
  for (auto* const each : {next, early}) free_block(each);
  release(first);
  for (auto* const each : {graph, later}) destroy_graph(each);
}

TEST_F(torch_captures, blocks_freed_by_another_thread_wait_for_the_end_of_a_capture) {
  free_block(block(1000)); // a stream that captures cannot be asked for its identity
  auto* const side = make_stream(device);
  begin(first);
  begin_capture();
  auto* const inside = block(3 * mib);
  join(stream, side);
  ASSERT_EQ(gpumem_torch_record_block_stream(inside, side, -1), GPUMEM_GRANTED);
  std::thread{[&] { free_block(inside); }}.join();
  join(side, stream);
  auto* const next = block(3 * mib);
  EXPECT_NE(next, inside);
  auto* const graph = end_capture();
  free_block(block(1000)); // completes the free
  EXPECT_EQ(block(3 * mib), inside);
  end(first);
  for (auto* const each : {next, inside}) free_block(each);
  release(first);
  destroy_graph(graph);
}

TEST_F(torch_captures, failed_free_changes_no_figure) {
  auto* const side = make_stream(device);
  begin(first);
  begin_capture();
  void* rounded = nullptr;
  ASSERT_EQ(gpumem_torch_allocate_rounded_block(3 * mib, 4 * mib, device, stream, promises, &rounded), GPUMEM_GRANTED);
  auto* const graph = end_capture();
  end(first);
  ASSERT_EQ(gpumem_torch_record_block_stream(rounded, side, -1), GPUMEM_GRANTED);
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_NE(gpumem_torch_free_block(rounded, nullptr), GPUMEM_GRANTED);
  EXPECT_EQ(figures(device).requested[GPUMEM_TORCH_ALL].current, 3 * mib);
  free_block(rounded);
  EXPECT_EQ(figures(device).requested[GPUMEM_TORCH_ALL].current, 0u);
  release(first);
  destroy_graph(graph);
}

// The free of one block waits for the end of the capture: the block is gone for the program.
TEST_F(torch_captures, blocks_whose_free_waits_are_not_restored_nor_freed_again) {
  auto* const side = make_stream(device);
  auto* const elsewhere = make_stream(device);
  begin(first);
  begin_capture();
  join(stream, side);
  auto* const kept = block(3 * mib);
  auto* const freed = block(5 * mib);
  for (auto* const each : {side, elsewhere}) // of which one captures
    ASSERT_EQ(gpumem_torch_record_block_stream(freed, each, -1), GPUMEM_GRANTED);
  free_block(freed);
  std::vector<gpumem_range> live;
  auto const visit = [](void* to, gpumem_range const* one, unsigned long long a, unsigned long long b) {
    if (one->live && a == 0 && b == 1) static_cast<std::vector<gpumem_range>*>(to)->push_back(*one);
  };
  ASSERT_EQ(gpumem_torch_visit_ranges(device, visit, &live), GPUMEM_GRANTED);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].base, kept);
  static std::vector<void*> changes;
  changes.clear();
  auto const changed = [](void*, gpumem_range const* one, int) { changes.push_back(one->base); };
  ASSERT_EQ(gpumem_torch_restore_pool(device, first, live.data(), live.size(), changed, nullptr), GPUMEM_GRANTED);
  EXPECT_EQ(changes, (std::vector<void*>{kept, kept}));
  EXPECT_EQ(figures(device).blocks[GPUMEM_TORCH_ALL].current, 1u);
  join(side, stream);
  auto* const graph = end_capture();
  auto* const again = block(5 * mib);
  EXPECT_EQ(again, freed);
  free_block(block(1000)); // no free waits
  EXPECT_EQ(pool_of(again), first) << "it is live";
  end(first);
  for (auto* const each : {kept, again}) free_block(each);
  release(first);
  destroy_graph(graph);
}

// A program goes back to an earlier state of its captures.
TEST_F(torch_captures, blocks_of_a_graph_are_restored) {
  begin(first);
  begin_capture();
  auto* const kept = block(3 * mib);
  auto* const gone = block(1000);
  std::vector<gpumem_range> live;
  auto const visit = [](void* to, gpumem_range const* one, unsigned long long a, unsigned long long b) {
    if (one->live && a == 0 && b == 1) static_cast<std::vector<gpumem_range>*>(to)->push_back(*one);
  };
  ASSERT_EQ(gpumem_torch_visit_ranges(device, visit, &live), GPUMEM_GRANTED);
  EXPECT_EQ(live.size(), 2u);
  free_block(gone);
  auto* const later = block(500);
  auto* const more = block(7 * mib);
  static std::vector<std::pair<void*, int>> changes;
  changes.clear();
  auto const changed = [](void*, gpumem_range const* one, int now) { changes.emplace_back(one->base, now); };
  ASSERT_EQ(gpumem_torch_restore_pool(device, first, live.data(), live.size(), changed, nullptr), GPUMEM_GRANTED)
      << gpumem_last_error();
  EXPECT_EQ(changes.size(), 5u);
  EXPECT_EQ(std::ranges::count(changes, std::pair{static_cast<void*>(more), 0}), 1);
  EXPECT_EQ(std::ranges::count(changes, std::pair{static_cast<void*>(later), 0}), 1);
  EXPECT_EQ(std::ranges::count(changes, std::pair{static_cast<void*>(gone), 1}), 1);
  EXPECT_EQ(figures(device).requested[GPUMEM_TORCH_ALL].current, 3 * mib + 1000);
  EXPECT_EQ(gpumem_torch_free_block(more, nullptr), GPUMEM_INVALID_ARGUMENT);
  auto* const graph = end_capture();
  end(first);
  live[0].base = static_cast<char*>(live[0].base) + 256; // overlaps the other
  EXPECT_EQ(gpumem_torch_restore_pool(device, second, live.data(), live.size(), changed, nullptr),
            GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_torch_restore_pool(device, first, nullptr, 1, changed, nullptr), GPUMEM_INVALID_ARGUMENT);
  free_block(kept);
  free_block(gone);
  release(first);
  destroy_graph(graph);
}

} // namespace
