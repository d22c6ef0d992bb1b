// Nodes of captured graphs on the simulated device: which work makes one, and on which others it depends.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace {

using namespace std::chrono_literals;
using nodes = std::vector<CUgraphNode>;

class graph : public simulated_device {
protected:
  void SetUp() override {
    simulated_device::SetUp();
    a = new_stream(CU_STREAM_NON_BLOCKING);
    b = new_stream(CU_STREAM_NON_BLOCKING);
  }
  /// The nodes on which the next node of the stream depends.
  static nodes next(CUstream s) {
    CUstreamCaptureStatus status{};
    CUgraphNode const* first = nullptr;
    CUgraphEdgeData const* edges = nullptr;
    std::size_t count = 0;
    EXPECT_EQ(cu().capture_info(s, &status, nullptr, nullptr, &first, &edges, &count), CUDA_SUCCESS);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(edges[i].type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
    return {first, first + count};
  }
  nodes dependencies(CUgraphNode node) const {
    std::size_t count = 0;
    EXPECT_EQ(depends_(node, nullptr, nullptr, &count), CUDA_SUCCESS);
    nodes found(count);
    std::vector<CUgraphEdgeData> edges(count);
    EXPECT_EQ(depends_(node, found.data(), edges.data(), &count), CUDA_SUCCESS);
    return found;
  }
  void order(CUstream from, CUstream to) {
    CUevent const between = new_event();
    cu().event_record(between, from);
    EXPECT_EQ(cu().stream_wait(to, between, 0), CUDA_SUCCESS);
  }
  /// Adds a node to the capture of the stream.
  static CUgraphNode work(CUstream s) {
    simulator::work(s, {}, 1us);
    return next(s).at(0);
  }
  void begin() { ASSERT_EQ(cu().begin_capture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS); }
  CUgraph end() {
    CUgraph made = nullptr;
    EXPECT_EQ(cu().end_capture(a, &made), CUDA_SUCCESS);
    return made;
  }

  decltype(&::cuGraphNodeGetDependencies) depends_ = entry{"cuGraphNodeGetDependencies"};
  CUstream a = nullptr, b = nullptr;
};

TEST_F(graph, work_of_each_kind_makes_a_node_and_events_make_none) {
  char* memory = new_memory(16);
  begin();
  EXPECT_EQ(next(a), nodes{}) << "the first node is a root";
  nodes made{work(a)};
  auto const expect_node = [&] {
    made.push_back(next(a).at(0));
    EXPECT_EQ(next(a).size(), 1u);
    EXPECT_EQ(dependencies(made.back()), nodes{made.end()[-2]});
  };
  EXPECT_EQ(cu().fill_async(address(memory), 0, 8, a), CUDA_SUCCESS);
  expect_node();
  EXPECT_EQ(cu().copy_async(address(memory), address(memory) + 8, 8, a), CUDA_SUCCESS);
  expect_node();
  EXPECT_EQ(cu().host_function(a, [](void*) {}, nullptr), CUDA_SUCCESS);
  expect_node();
  cu().event_record(new_event(), a);
  EXPECT_EQ(next(a), nodes{made.back()});
  CUgraph const captured = end();
  std::size_t count = 8;
  nodes told(count, made[0]);
  EXPECT_EQ(cu().graph_nodes(captured, told.data(), &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(told[4], nullptr);
  told.resize(count);
  EXPECT_EQ(told, made);
}

TEST_F(graph, joins_add_the_nodes_of_the_event) {
  CUevent const early = new_event();
  begin();
  CUgraphNode const first = work(a);
  cu().event_record(early, a);
  CUgraphNode const second = work(a);
  EXPECT_EQ(cu().stream_wait(b, early, 0), CUDA_SUCCESS);
  EXPECT_EQ(next(b), nodes{first}) << "as the stream was at the record";
  CUgraphNode const beside = work(b);
  EXPECT_EQ(dependencies(beside), nodes{first});
  order(b, a);
  EXPECT_EQ(next(a), (nodes{second, beside}));
  order(b, a);
  EXPECT_EQ(next(a), (nodes{second, beside})) << "once";
  EXPECT_EQ(dependencies(work(a)), (nodes{second, beside}));
  end();
}

TEST_F(graph, join_of_a_stream_without_work_depends_on_nothing) {
  begin();
  order(a, b);
  EXPECT_EQ(next(b), nodes{});
  CUgraphNode const root = work(b);
  EXPECT_EQ(dependencies(root), nodes{});
  EXPECT_EQ(dependencies(work(a)), nodes{});
  order(b, a);
  end();
}

TEST_F(graph, programmatic_launches_have_edges_of_their_own) {
  const decltype(&::cuLaunchKernelEx) launch = entry{"cuLaunchKernelEx"};
  auto const plain = entry{"cuGraphNodeGetDependencies", 12020};
  CUresult (*const without_edges)(CUgraphNode, CUgraphNode*, std::size_t*) = plain;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  ASSERT_EQ(cu().load_module(&module, "code"), CUDA_SUCCESS);
  ASSERT_EQ(cu().module_function(&kernel, module, "kernel"), CUDA_SUCCESS);
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig how{1, 1, 1, 1, 1, 1, 0, a, &early, 1};
  begin();
  CUgraphNode const before = work(a);
  std::array<CUgraphNode, 2> kernels{};
  for (auto& each : kernels) {
    EXPECT_EQ(launch(&how, kernel, nullptr, nullptr), CUDA_SUCCESS);
    each = next(a).at(0);
  }
  CUgraphNode found = nullptr;
  CUgraphEdgeData edge{};
  std::size_t count = 1;
  EXPECT_EQ(depends_(kernels[0], &found, &edge, &count), CUDA_SUCCESS);
  EXPECT_EQ(found, before);
  EXPECT_EQ(edge.type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT) << "the node before it is no kernel";
  EXPECT_EQ(without_edges(kernels[0], &found, &count), CUDA_SUCCESS);
  EXPECT_EQ(depends_(kernels[1], &found, &edge, &count), CUDA_SUCCESS);
  EXPECT_EQ(found, kernels[0]);
  EXPECT_EQ(edge.type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
  EXPECT_EQ(edge.from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  EXPECT_EQ(without_edges(kernels[1], &found, &count), CUDA_ERROR_LOSSY_QUERY);
  EXPECT_EQ(depends_(kernels[1], nullptr, &edge, &count), CUDA_ERROR_INVALID_VALUE);
  end();
}

TEST_F(graph, told_lists_end_with_the_next_call_on_the_stream) {
  begin();
  CUgraphNode const node = work(a);
  CUstreamCaptureStatus status{};
  CUgraph open = nullptr;
  CUgraphNode const* told = nullptr;
  std::size_t count = 0;
  EXPECT_EQ(cu().capture_info(a, &status, nullptr, &open, &told, nullptr, &count), CUDA_SUCCESS);
  ASSERT_EQ(count, 1u);
  order(b, b);
  EXPECT_EQ(told[0], node) << "a call on another stream";
  EXPECT_EQ(cu().is_capturing(a, &status), CUDA_SUCCESS);
  EXPECT_EQ(told[0], nullptr);
  EXPECT_EQ(end(), open);
}

TEST_F(graph, nodes_end_with_their_graph_and_their_handles_are_used_again) {
  const decltype(&::cuGraphDestroy) destroy = entry{"cuGraphDestroy"};
  begin();
  CUgraphNode const first = work(a);
  EXPECT_EQ(destroy(end()), CUDA_SUCCESS);
  std::size_t count = 0;
  EXPECT_EQ(depends_(first, nullptr, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  begin();
  EXPECT_EQ(work(a), first);
  cu().stream_query(a); // invalidates the capture
  CUgraph none = nullptr;
  EXPECT_EQ(cu().end_capture(a, &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(depends_(first, nullptr, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
}

} // namespace
