// The order of captured work by itself: which ends of uses come before the next work of a stream.
// SPDX-License-Identifier: Apache-2.0
#include "captured_graphs.hpp"

#include <array>
#include <chrono>
#include <thread>
#include <vector>

import gpumem;

namespace {

using gpumem::stream_ref;
using gpumem::driver_api::driver_calls;
using gpumem::extend::identify;
using gpumem_test::begin_capture;
using gpumem_test::cu;
using gpumem_test::driver_function;
using gpumem_test::end_capture;
using gpumem_test::join_streams;
namespace simulator = gpumem::simulator;

class captured_order : public gpumem_test::capture_test {
protected:
  using epoch = gpumem::extend::epoch;
  static constexpr epoch no_end = gpumem::detail::captured_order::no_end;
  static constexpr epoch own_end = gpumem::detail::captured_order::own_end;

  static void work(stream_ref on) { simulator::work(on, {}, std::chrono::microseconds{1}); }
  // Ends a use of a block that the stream has allocated in its capture.
  epoch end(gpumem::stream const& on) { return order.end_use(on.key(), order.note_request(on.key())); }
  // Adds a node and ends a use after it.
  epoch worked(gpumem::stream const& on) {
    work(on);
    return end(on);
  }
  bool before(epoch one, gpumem::stream const& next) {
    auto const* const at = order.look_at(next.key());
    EXPECT_NE(at, nullptr) << "the stream captures";
    return at && order.is_before(one, *at);
  }
  static CUgraphNode last_node(stream_ref of) {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraphNode const* nodes = nullptr;
    std::size_t count = 0;
    cu().stream_get_capture_info(of.get(), &status, nullptr, nullptr, &nodes, nullptr, &count);
    return count > 0 ? nodes[0] : nullptr;
  }
  // Ends the capture of `a` after joining these streams.
  gpumem_test::captured_graph finish(std::vector<stream_ref> const& joined) {
    for (auto const each : joined) join_streams(each, a);
    return end_capture(a);
  }

  gpumem::stream c{device};
  gpumem::detail::captured_order order;
};

TEST_F(captured_order, uses_outside_captures_have_no_end) {
  work(a);
  EXPECT_EQ(end(a), own_end);
  EXPECT_EQ(order.look_at(a.key()), nullptr);
  begin_capture(a);
  EXPECT_EQ(end(a), own_end) << "work before the capture has no order with the graph";
  join_streams(a, b);
  EXPECT_EQ(end(b), own_end);
  for (auto const each : {own_end, no_end}) EXPECT_FALSE(before(each, a));
  finish({b});
  EXPECT_EQ(order.size(), 0u);
}

TEST_F(captured_order, use_comes_before_work_that_joins_after_it) {
  begin_capture(a);
  work(a);
  join_streams(a, b);
  auto const one = worked(a);
  ASSERT_LT(one, own_end);
  EXPECT_TRUE(before(one, a)) << "the stream itself";
  EXPECT_FALSE(before(one, b)) << "b has joined before the use";
  work(b);
  EXPECT_FALSE(before(one, b));
  join_streams(a, b);
  EXPECT_TRUE(before(one, b));
  auto const two = worked(a);
  EXPECT_GT(two, one);
  work(b);
  EXPECT_TRUE(before(one, b));
  EXPECT_FALSE(before(two, b));
  finish({b});
}

TEST_F(captured_order, order_passes_through_other_streams) {
  begin_capture(a);
  auto const one = worked(a);
  join_streams(a, b);
  work(b);
  join_streams(b, c);
  work(c);
  EXPECT_TRUE(before(one, c));
  auto const two = worked(b);
  EXPECT_FALSE(before(two, c));
  EXPECT_FALSE(before(two, a));
  join_streams(b, a);
  join_streams(a, c);
  EXPECT_TRUE(before(two, c)) << "by events alone";
  finish({b, c});
}

// The driver reuses the handles of destroyed nodes.
TEST_F(captured_order, nodes_of_another_capture_say_nothing) {
  begin_capture(a);
  auto const one = worked(a);
  auto* const node = last_node(a);
  begin_capture(b, CU_STREAM_CAPTURE_MODE_RELAXED);
  order.note_request(b.key());
  CUgraph graph = nullptr;
  ASSERT_EQ(cu().stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
  cu().graph_destroy(graph);
  work(b);
  ASSERT_EQ(last_node(b), node);
  EXPECT_FALSE(before(one, b));
  end_capture(b);
}

TEST_F(captured_order, all_nodes_of_an_end_must_come_before) {
  begin_capture(a);
  work(a);
  join_streams(a, b);
  join_streams(a, c);
  work(b);
  work(a);
  join_streams(a, c);
  work(c);
  join_streams(b, a);
  auto const both = end(a); // after a node of a and one of b
  EXPECT_FALSE(before(both, c)) << "c comes after one of them";
  join_streams(b, c);
  EXPECT_TRUE(before(both, c));
  finish({b, c});
}

TEST_F(captured_order, ends_at_the_same_place_are_one) {
  begin_capture(a);
  auto const one = worked(a);
  EXPECT_EQ(end(a), one);
  join_streams(a, b);
  auto const other = end(b);
  EXPECT_EQ(order.size(), 2u);
  EXPECT_TRUE(before(other, a));
  EXPECT_GT(worked(a), other);
  finish({b});
}

// A programmatic launch lets a kernel begin while the kernel before it runs.
TEST_F(captured_order, programmatic_launches_order_only_earlier_work) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  ASSERT_EQ(cu().module_load_data(&module, "code"), CUDA_SUCCESS);
  ASSERT_EQ(cu().module_get_function(&kernel, module, "kernel"), CUDA_SUCCESS);
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig const how{1, 1, 1, 1, 1, 1, 0, a.get(), &early, 1};
  auto const launched = [&] {
    EXPECT_EQ(driver_function<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx")(&how, kernel, nullptr, nullptr),
              CUDA_SUCCESS);
    return end(a);
  };
  begin_capture(a);
  auto const plain = worked(a);
  auto const first = launched();
  auto const second = launched();
  join_streams(a, b);
  EXPECT_TRUE(before(plain, b)) << "the first kernel began after it";
  EXPECT_FALSE(before(first, b)) << "it may still run at the end of the second kernel";
  EXPECT_TRUE(before(second, b));
  finish({b});
  EXPECT_EQ(cu().module_unload(module), CUDA_SUCCESS);
}

TEST_F(captured_order, ended_captures_come_before_later_ones) {
  begin_capture(a);
  work(a);
  join_streams(a, b);
  auto const one = worked(b);
  EXPECT_FALSE(before(one, a));
  auto const kept = finish({b});
  begin_capture(c); // none of the streams of the first capture is used again
  EXPECT_TRUE(before(one, c));
  join_streams(c, a);
  EXPECT_TRUE(before(one, a)) << "each stream of the later capture";
  join_streams(a, c);
  end_capture(c);
}

TEST_F(captured_order, captures_at_the_same_time_have_no_order) {
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  auto const one = worked(a);
  begin_capture(b, CU_STREAM_CAPTURE_MODE_RELAXED);
  auto const two = worked(b);
  EXPECT_FALSE(before(one, b));
  EXPECT_FALSE(before(two, a));
  end_capture(a);
  EXPECT_EQ(end(a), own_end);
  EXPECT_FALSE(before(one, b)) << "the first capture ended after the second had begun";
  EXPECT_TRUE(before(two, b));
  end_capture(b);
}

TEST_F(captured_order, nodes_of_another_graph_with_the_same_handles_are_others) {
  begin_capture(a);
  auto const one = worked(a);
  end_capture(a); // destroys the graph
  begin_capture(c);
  work(c);
  EXPECT_FALSE(before(one, c)) << "the driver gives the handle of the node again";
  end_capture(c);
}

// Parts of one graph run in one launch, in an order that their ends do not show.
TEST_F(captured_order, ended_captures_of_the_same_graph_have_no_order) {
  begin_capture(a);
  auto const one = worked(a);
  finish({}); // the driver gives the graph's handle again
  begin_capture(c);
  auto const two = worked(c);
  EXPECT_FALSE(before(one, c));
  auto const kept = end_capture(c);
  begin_capture(a);
  EXPECT_TRUE(before(two, a));
  finish({});
}

TEST_F(captured_order, blocks_from_outside_the_capture_have_no_end) {
  begin_capture(a);
  work(a);
  auto const first = order.note_request(a.key());
  EXPECT_EQ(order.end_use(a.key(), 0), own_end) << "allocated before the capture";
  EXPECT_LT(order.end_use(a.key(), first), own_end);
  auto const kept = finish({});
  begin_capture(a);
  work(a);
  EXPECT_NE(order.note_request(a.key()), first);
  EXPECT_EQ(order.end_use(a.key(), first), own_end) << "allocated in an earlier capture";
  finish({});
}

// The driver's lists change while another thread works on the stream.
TEST_F(captured_order, threads_that_do_not_work_on_the_capture_ask_nothing) {
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  work(a);
  join_streams(a, b);
  work(b);
  auto const capture = order.note_request(a.key());
  auto const elsewhere = [](auto const& what) { std::thread{what}.join(); };
  auto const calls = driver_calls("cuStreamGetCaptureInfo");
  elsewhere([&] {
    EXPECT_FALSE(order.is_worked_on_here(capture));
    EXPECT_EQ(order.end_use(a.key(), capture), own_end);
    EXPECT_EQ(order.end_use(b.key(), capture), own_end);
  });
  EXPECT_EQ(driver_calls("cuStreamGetCaptureInfo"), calls);
  EXPECT_LT(order.end_use(b.key(), capture), own_end) << "b has made no request yet";
  elsewhere([&] {
    order.note_request(b.key());
    EXPECT_LT(order.end_use(b.key(), capture), own_end);
  });
  EXPECT_EQ(order.end_use(a.key(), capture), own_end);
  order.note_request(a.key());
  EXPECT_LT(order.end_use(a.key(), capture), own_end);
  EXPECT_EQ(order.end_use(b.key(), capture), own_end) << "the other thread works on b";
  finish({b});
}

TEST_F(captured_order, invalidated_captures_have_no_ends) {
  begin_capture(a);
  work(a);
  EXPECT_NE(cu().stream_query(a.get()), CUDA_SUCCESS);
  EXPECT_EQ(end(a), own_end);
  CUgraph none = nullptr;
  EXPECT_EQ(cu().stream_end_capture(a.get(), &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(captured_order, each_node_is_visited_once_for_each_stream) {
  constexpr unsigned nodes = 100;
  begin_capture(a);
  std::array<epoch, nodes> ends{};
  for (auto& each : ends) each = worked(a);
  join_streams(a, b);
  auto const visits = [] { return driver_calls("cuGraphNodeGetDependencies"); };
  auto const start = visits();
  for (auto const each : ends) EXPECT_TRUE(before(each, b));
  EXPECT_EQ(visits() - start, nodes);
  for (unsigned i = 0; i < nodes; ++i) {
    work(b);
    EXPECT_TRUE(before(ends[i], b));
  }
  EXPECT_EQ(visits() - start, 2 * nodes);
  finish({b});
}

TEST_F(captured_order, node_with_many_dependencies_is_read_whole) {
  std::vector<gpumem::stream> others;
  for (int i = 0; i < 40; ++i) others.emplace_back(device);
  begin_capture(a);
  work(a);
  std::vector<epoch> ends;
  for (auto const& each : others) {
    join_streams(a, each);
    ends.push_back(worked(each));
  }
  for (auto const& each : others) join_streams(each, a);
  work(a);
  join_streams(a, b);
  for (auto const each : ends) EXPECT_TRUE(before(each, b));
  finish({b});
}

TEST_F(captured_order, streams_that_cannot_capture_are_not_asked) {
  begin_capture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
  auto const capture = order.note_request(a.key());
  auto const calls = driver_calls("cuStreamGetCaptureInfo");
  for (auto const key : {gpumem::extend::stream_key::host(), identify(stream_ref{CU_STREAM_LEGACY})}) {
    EXPECT_EQ(order.end_use(key, capture), own_end);
    EXPECT_EQ(order.look_at(key), nullptr);
  }
  auto const foreign = make_foreign();
  auto const key = identify(foreign);
  EXPECT_EQ(order.end_use(key, capture), own_end) << "it was asked when it was identified";
  EXPECT_EQ(driver_calls("cuStreamGetCaptureInfo"), calls);
  work(a);
  join_streams(a, foreign);
  auto const one = order.end_use(identify(foreign), capture);
  EXPECT_NE(one, own_end);
  EXPECT_EQ(order.end_use(key.by_identity(), capture), own_end) << "without the handle";
  EXPECT_TRUE(before(one, a));
  finish({foreign});
  cu().stream_destroy(foreign.get());
}

TEST_F(captured_order, ends_are_dropped) {
  begin_capture(a);
  std::vector<epoch> ends;
  while (!order.is_full()) ends.push_back(worked(a));
  EXPECT_EQ(ends.size(), 64u);
  std::vector<epoch> const kept(ends.end() - 50, ends.end());
  order.keep_only(kept);
  EXPECT_EQ(order.size(), 50u);
  EXPECT_TRUE(before(kept.back(), a));
  while (!order.is_full()) worked(a);
  EXPECT_EQ(order.size(), 100u);
  order.keep_only({});
  EXPECT_EQ(order.size(), 0u);
  finish({});
}

} // namespace
