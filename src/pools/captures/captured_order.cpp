// Reads the dependencies of captured work from the driver.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:captured_order.impl;
import :captured_order;
import :cuda;
import :driver;
import :stream;
import :stream_timeline;
import :timeline_registry;

namespace gpumem::detail {
namespace {

// The capture of a stream, 0 if it takes part in none, and the edges to its next node. The driver owns the lists, and
// changes them with the next call on the stream.
struct capture_place {
  std::uint64_t capture = 0;
  std::span<CUgraphNode const> nodes;
  CUgraphEdgeData const* edges = nullptr;
};

// A question about the legacy stream would end captures. The handle of a foreign stream may be dead unless the call has
// got it; then the stream was asked when it was identified.
bool may_ask(stream_key const& key) {
  if (!key.has_handle() || !driver_alive()) return false;
  switch (key.timeline().kind()) {
  case stream_kind::own:
  case stream_kind::adopted: return true;
  case stream_kind::foreign: return key.capturing();
  case stream_kind::per_thread: return key.capturing() && timeline_registry::is_own_default(key.timeline());
  default: return false;
  }
}

// Returns nullopt if the driver could not be asked, or had no answer.
std::optional<capture_place> place_of(stream_key const& key) {
  if (!may_ask(key)) return std::nullopt;
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraphNode const* nodes = nullptr;
  CUgraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
  auto const asked = driver().stream_get_capture_info(key.handle(), &status, &id, nullptr, &nodes, &edges, &count);
  if (asked != CUDA_SUCCESS) return std::nullopt;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return capture_place{};
  return capture_place{id, {nodes, count}, edges};
}

// The edges to one node, in buffers that grow as needed.
class incoming_edges {
public:
  std::span<CUgraphNode const> read(CUgraphNode node) {
    for (;;) {
      auto count = nodes_.size();
      if (driver().graph_node_get_dependencies(node, nodes_.data(), edges_.data(), &count) != CUDA_SUCCESS) return {};
      if (count < nodes_.size()) return {nodes_.data(), count};
      nodes_.resize(2 * count);
      edges_.resize(2 * count);
    }
  }
  CUgraphEdgeData const* edges() const noexcept { return edges_.data(); }

private:
  std::vector<CUgraphNode> nodes_ = std::vector<CUgraphNode>(8);
  std::vector<CUgraphEdgeData> edges_ = std::vector<CUgraphEdgeData>(8);
};

// Any other edge lets the later node begin while the earlier one runs, as for a programmatic launch.
bool awaits_completion(CUgraphEdgeData const& edge) noexcept {
  return edge.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT && edge.from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
}

// Adds all nodes before a place. A node that has begun had waited for the completion of those before it. Nodes that
// were reached before are not visited again, and stay before all later work of the stream.
void walk(std::unordered_map<CUgraphNode, bool>& reached, capture_place const& from) {
  std::vector<CUgraphNode> pending;
  auto const reach = [&](std::span<CUgraphNode const> nodes, CUgraphEdgeData const* edges) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      auto const [at, first] = reached.try_emplace(nodes[i], false);
      at->second |= !edges || awaits_completion(edges[i]);
      if (first) pending.push_back(nodes[i]);
    }
  };
  reach(from.nodes, from.edges);
  incoming_edges incoming;
  while (!pending.empty()) {
    auto const node = pending.back();
    pending.pop_back();
    auto const before = incoming.read(node);
    reach(before, incoming.edges());
  }
}

} // namespace

// A stream takes part in its capture until that ends. So a stream that is seen elsewhere shows the end.
captured_order::position* captured_order::enter(stream_timeline const& timeline, std::uint64_t capture) {
  auto known = streams_.find(&timeline);
  if (known != streams_.end() && known->second.capture_ != capture) {
    open_.erase(known->second.capture_);
    streams_.erase(known);
    if (open_.empty()) { // all captures with ends come before those that follow
      ends_.clear();
      streams_.clear();
    }
    known = streams_.end();
  }
  if (capture == 0) return nullptr;
  if (known == streams_.end()) {
    open_.insert(capture);
    known = streams_.try_emplace(&timeline).first;
    known->second.capture_ = capture;
  }
  return &known->second;
}

epoch captured_order::end_use(stream_key const& key) {
  auto const place = place_of(key);
  if (!place) return no_end;
  auto* const here = enter(key.timeline(), place->capture);
  if (!here || place->nodes.empty()) return no_end;
  auto const newest = ends_.find(here->newest_end_);
  if (newest != ends_.end() && std::ranges::equal(newest->second.nodes, place->nodes)) return here->newest_end_;
  ends_.emplace(newest_end_ + 1, end_of_use{place->capture, {place->nodes.begin(), place->nodes.end()}});
  return here->newest_end_ = ++newest_end_;
}

captured_order::position const* captured_order::look_at(stream_key const& key) {
  auto const place = place_of(key);
  if (!place) return nullptr;
  auto* const here = enter(key.timeline(), place->capture);
  if (here) walk(here->reached_, *place);
  return here;
}

bool captured_order::is_before(epoch end, position const& next) const noexcept {
  if (end == no_end) return false;
  auto const found = ends_.find(end);
  if (found == ends_.end()) return true; // of a capture that has ended
  auto const is_complete = [&](CUgraphNode node) {
    auto const reached = next.reached_.find(node);
    return reached != next.reached_.end() && reached->second;
  };
  return found->second.capture == next.capture_ && std::ranges::all_of(found->second.nodes, is_complete);
}

void captured_order::keep_only(std::span<epoch const> used) {
  std::set<epoch> const kept{used.begin(), used.end()};
  std::erase_if(ends_, [&](auto const& one) { return !kept.contains(one.first); });
  limit_ = std::max(least_limit, 2 * ends_.size());
}

} // namespace gpumem::detail
