// Stream capture: the streams that take part, the order between them, and the graph that results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "driver_api.hpp"
#include "handle_table.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace simulated {

/// A node of a graph, with the edges that lead to it.
struct graph_node {
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphEdgeData> edges; // one for each dependency
  bool is_kernel = false;
};
using graph_nodes = handle_table<graph_node>;

/// Captured work. It is launched as one operation that touches all bytes that its nodes touch.
struct graph {
  std::vector<operation> nodes;
  std::vector<CUgraphNode> handles; // one for each node
};

struct capture {
  struct member {
    stream_ptr stream;
    std::uint64_t nodes = 0;
    vector_clock order;                    // component i: how many nodes of members[i] come before the next node
    std::vector<CUgraphNode> dependencies; // dependencies of the stream's next node
    std::vector<CUgraphEdgeData> edges;    // one for each of these dependencies
  };

  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t begun_by = 0; // number of the host thread that began the capture
  bool invalid = false;
  std::vector<member> members; // the first one is the stream on which the capture began
  std::shared_ptr<graph> made = std::make_shared<graph>();
  CUgraph handle = nullptr; // handle of the graph `made`

  /// Identifies a node: it is node number `number` of members[member].
  struct place {
    std::uint32_t member;
    std::uint64_t number;
  };
  std::vector<place> places; // one for each node in `made`

  /// An earlier node that conflicts with a new one: both touch the same bytes, one of them writes, and neither is
  /// ordered after the other.
  struct clash {
    party earlier;
    touched bytes;
  };

  /// Returns the stream as a member. Adds it to the capture if it is not a member yet.
  member& enter(stream_ptr const& stream);

  /// Adds an operation to the graph instead of enqueuing it.
  void add(stream_ptr const& stream, operation&& node, graph_nodes& all_nodes);

  /// Adds `nodes` to the nodes on which the stream's next node depends.
  void depend(stream_ptr const& stream, std::vector<CUgraphNode> const& nodes);

  /// Returns the first clash between `node`, which the stream is about to add, and an earlier node. When the graph
  /// runs, two nodes that clash can run at the same time.
  [[nodiscard]] std::optional<clash> clash_of(stream_ptr const& stream, operation const& node);

  /// Returns whether the stream on which the capture began is ordered after all nodes of all members.
  [[nodiscard]] bool joined() const;
};

} // namespace simulated
