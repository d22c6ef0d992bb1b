// Stream capture: the streams that take part, what each is ordered after, and the graph that results.
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

/// The edges to a node of a graph.
struct graph_node {
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphEdgeData> edges; // of each dependency
  bool is_kernel = false;
};
using graph_nodes = handle_table<graph_node>;

/// Captured work. It is launched as one operation that touches all bytes that its nodes touch.
struct graph {
  std::vector<operation> nodes;
  std::vector<CUgraphNode> handles; // of the nodes
};

struct capture {
  struct member {
    stream_ptr on;
    std::uint64_t nodes = 0;
    vector_clock order;                    // component i counts the nodes of members[i]
    std::vector<CUgraphNode> dependencies; // of the stream's next node
    std::vector<CUgraphEdgeData> edges;    // of each dependency
  };

  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t begun_by = 0; // number of the host thread
  bool invalid = false;
  std::vector<member> members; // the first is the origin
  std::shared_ptr<graph> made = std::make_shared<graph>();
  CUgraph handle = nullptr; // of `made`

  /// The place of a node: the `number`th of its member.
  struct place {
    std::uint32_t member;
    std::uint64_t number;
  };
  std::vector<place> places; // of the nodes in `made`

  /// An earlier node that touches bytes of a new one, of which one writes them, and that is in no order with it.
  struct clash {
    party earlier;
    touched bytes;
  };

  /// Returns the stream as a member. Adds it to the capture if it is not a member yet.
  member& enter(const stream_ptr& on);

  /// Adds an operation to the graph instead of enqueuing it.
  void add(const stream_ptr& on, operation&& node, graph_nodes& all);

  /// Makes the stream's next node depend on these nodes too.
  void depend(const stream_ptr& on, const std::vector<CUgraphNode>& nodes);

  /// Returns the first clash of a node that the stream is about to add. Within one launch the graph runs such nodes at
  /// the same time.
  [[nodiscard]] std::optional<clash> clash_of(const stream_ptr& on, const operation& node);

  /// Returns whether the origin is ordered after all work of all members.
  [[nodiscard]] bool joined() const;
};

} // namespace simulated
