// Stream capture: adds streams and their work (the nodes of a graph), and keeps the order between the streams.
// SPDX-License-Identifier: Apache-2.0
#include "capture.hpp"

#include <algorithm>
#include <utility>

namespace simulated {

capture::member& capture::enter(stream_ptr const& stream) {
  for (member& present : members)
    if (present.stream == stream) return present;
  return members.emplace_back(member{stream, 0, {}, {}, {}});
}

void capture::add(stream_ptr const& stream, operation&& node, graph_nodes& all_nodes) {
  member& place = enter(stream);
  auto edges = std::make_shared<graph_node>();
  edges->dependencies = std::move(place.dependencies);
  edges->edges = std::move(place.edges);
  edges->is_kernel = node.is_kernel;
  for (std::size_t i = 0; i < edges->edges.size() && node.may_overlap; ++i) {
    auto const* before = all_nodes.find(edges->dependencies[i]);
    if (before == nullptr || !(*before)->is_kernel) continue;
    edges->edges[i].from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    edges->edges[i].type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  }
  auto const handle = static_cast<CUgraphNode>(all_nodes.insert(std::move(edges)));
  made->handles.push_back(handle);
  place.dependencies = {handle};
  place.edges = {CUgraphEdgeData{}};
  auto const index = static_cast<std::uint32_t>(&place - members.data());
  place.order.set(index, ++place.nodes);
  places.push_back({index, place.nodes});
  made->nodes.push_back(std::move(node));
}

void capture::depend(stream_ptr const& stream, std::vector<CUgraphNode> const& nodes) {
  member& place = enter(stream);
  for (CUgraphNode const node : nodes) {
    if (std::find(place.dependencies.begin(), place.dependencies.end(), node) != place.dependencies.end()) continue;
    place.dependencies.push_back(node);
    place.edges.push_back({});
  }
}

std::optional<capture::clash> capture::clash_of(stream_ptr const& stream, operation const& node) {
  vector_clock const& order = enter(stream).order;
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto const [member, number] = places[i];
    if (members[member].stream == stream || order.covers(member, number)) continue;
    for (touched const& mine : node.touches)
      for (touched const& other : made->nodes[i].touches) {
        bool const overlap = mine.address < other.address + other.bytes && other.address < mine.address + mine.bytes;
        if (overlap && (mine.write || other.write))
          return clash{{members[member].stream->id, number, made->nodes[i].action}, mine};
      }
  }
  return std::nullopt;
}

bool capture::joined() const {
  vector_clock const& origin = members.front().order;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!origin.covers(static_cast<std::uint32_t>(i), members[i].nodes)) return false;
  return true;
}

} // namespace simulated
