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
import :sync;
import :timeline_registry;

namespace gpumem::detail {
namespace {

// The capture in which a stream takes part (0: none), its graph, and the nodes and edges before the stream's next node.
// The driver owns the lists, and changes them with the next call on the stream.
struct capture_place {
  std::uint64_t capture = 0;
  CUgraph graph = nullptr;
  std::span<CUgraphNode const> nodes;
  CUgraphEdgeData const* edges = nullptr;
};

// Returns whether to ask the driver about the stream. A question about the legacy stream would end captures. For a
// mortal stream, the key says whether it captured when the pool was called. Such a stream is asked about again only if
// it captured then.
bool may_ask(stream_key const& key) {
  if (!key.identity().has_handle() || !key.identity().timeline().is_usable()) return false;
  switch (key.identity().timeline().kind()) {
  case stream_kind::own:
  case stream_kind::adopted: return true;
  case stream_kind::foreign: return key.identity().capturing();
  case stream_kind::per_thread:
    return key.identity().capturing() && timeline_registry::is_own_default(key.identity().timeline());
  default: return false;
  }
}

// Asks the driver for the stream's place in its capture. Returns nullopt if the driver may not be asked, or on an
// error.
std::optional<capture_place> place_of(stream_key const& key) {
  if (!may_ask(key)) return std::nullopt;
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  CUgraphNode const* nodes = nullptr;
  CUgraphEdgeData const* edges = nullptr;
  std::size_t count = 0;
  auto const asked =
      driver().stream_get_capture_info(key.identity().handle(), &status, &id, &graph, &nodes, &edges, &count);
  if (asked != CUDA_SUCCESS) return std::nullopt;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return capture_place{};
  return capture_place{id, graph, {nodes, count}, edges};
}

// Reads the edges to one node, into buffers that grow as needed.
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

// Returns whether the later node of an edge begins only after the earlier one is complete. Edges of other types let it
// begin earlier, as for a programmatic launch.
bool awaits_completion(CUgraphEdgeData const& edge) noexcept {
  return edge.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT && edge.from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
}

// Returns whether the stream's next node begins only after the stream's last nodes are complete.
bool awaits_completion(capture_place const& place) noexcept {
  return !place.edges || std::ranges::all_of(std::span{place.edges, place.nodes.size()},
                                             [](CUgraphEdgeData const& each) { return awaits_completion(each); });
}

// Adds to `reached` all nodes that come before a place in the graph. Even if a node has only begun, the nodes whose
// completion it awaits are complete. Nodes that are in `reached` already come before all later work of the stream, so
// they are not visited again.
void walk(std::unordered_map<CUgraphNode, bool>& reached, capture_place const& place) {
  std::vector<CUgraphNode> pending;
  auto const reach = [&](std::span<CUgraphNode const> nodes, CUgraphEdgeData const* edges) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      auto const [at, first] = reached.try_emplace(nodes[i], false);
      at->second |= !edges || awaits_completion(edges[i]);
      if (first) pending.push_back(nodes[i]);
    }
  };
  reach(place.nodes, place.edges);
  incoming_edges incoming;
  while (!pending.empty()) {
    auto const node = pending.back();
    pending.pop_back();
    auto const before = incoming.read(node);
    reach(before, incoming.edges());
  }
}

} // namespace

// Returns the position of a stream in a capture; null without a capture. A stream takes part in its capture until the
// capture ends. So if the stream is now seen elsewhere, the earlier capture has ended.
captured_order::position* captured_order::enter(stream_timeline& timeline, std::uint64_t capture, CUgraph graph) {
  auto stream_entry = streams_.find(&timeline);
  if (stream_entry != streams_.end() && stream_entry->second.capture_ != capture) {
    auto const ended = stream_entry->second.capture_;
    streams_.erase(stream_entry);
    end_capture(ended);
    stream_entry = streams_.end();
  }
  if (capture == 0) return nullptr;
  if (!open_.contains(capture)) {
    end_left_captures();
    open_.try_emplace(capture);
    stream_entry = streams_.find(&timeline);
  }
  if (stream_entry == streams_.end()) {
    stream_entry = streams_.try_emplace(&timeline).first;
    stream_entry->second.capture_ = capture;
    stream_entry->second.graph_ = graph;
    stream_entry->second.era_ = era_;
  }
  return &stream_entry->second;
}

void captured_order::leave(stream_timeline& dead) noexcept {
  auto const known = streams_.find(&dead);
  if (known == streams_.end()) return;
  auto const ended = known->second.capture_;
  streams_.erase(known);
  end_capture(ended);
}

// Notes the end of a capture. If no capture is open any more, all uses that have ended so far come before the captures
// that follow.
void captured_order::end_capture(std::uint64_t capture) noexcept {
  if (open_.erase(capture) == 0 || !open_.empty()) return;
  ++era_;
  streams_.clear();
}

// Notes the end of captures that have ended, also those whose streams the program never uses again: asks the driver
// about their streams. Does not ask about foreign streams, whose owners may have destroyed them. So a capture stays
// open here if only foreign streams took part.
void captured_order::end_left_captures() {
  std::vector<std::uint64_t> ended;
  for (auto const& [timeline, at] : streams_) {
    if (!timeline->owns_handle() || !open_.contains(at.capture_)) continue;
    auto const now = place_of(stream_key::of(*timeline, timeline->handle()));
    if (now && now->capture != at.capture_) ended.push_back(at.capture_);
  }
  for (auto const each : ended) end_capture(each);
}

std::uint64_t captured_order::note_request(stream_key const& key) {
  auto const place = place_of(key);
  auto* const here = place ? enter(key.identity().timeline(), place->capture, place->graph) : nullptr;
  if (!here) return 0;
  open_[here->capture_] = here->thread_ = sync::thread_index();
  return here->capture_;
}

bool captured_order::is_worked_on_here(std::uint64_t capture) const noexcept {
  auto const found = open_.find(capture);
  return found != open_.end() && found->second == sync::thread_index();
}

// Asks the driver for the stream's last captured nodes, after which the use ends. Does so only if no other thread is
// known to work on the capture or the stream. Returns own_end if the order of the use is not known.
epoch captured_order::end_use(stream_key const& key, std::uint64_t allocated_in) {
  if (!is_worked_on_here(allocated_in)) return own_end;
  auto const stream_entry = streams_.find(&key.identity().timeline());
  if (stream_entry != streams_.end() &&
      stream_entry->second.thread_.value_or(sync::thread_index()) != sync::thread_index())
    return own_end;
  auto const place = place_of(key);
  if (!place) return own_end;
  auto* const here = enter(key.identity().timeline(), place->capture, place->graph);
  if (!here || here->capture_ != allocated_in || place->nodes.empty() || !awaits_completion(*place)) return own_end;
  auto const newest = ends_.find(here->newest_end_);
  if (newest != ends_.end() && std::ranges::equal(newest->second.nodes, place->nodes)) return here->newest_end_;
  ends_.emplace(newest_end_ + 1,
                end_of_use{here->capture_, here->graph_, here->era_, {place->nodes.begin(), place->nodes.end()}});
  return here->newest_end_ = ++newest_end_;
}

captured_order::position const* captured_order::look_at(stream_key const& key) {
  auto const place = place_of(key);
  if (!place) return nullptr;
  auto* const here = enter(key.identity().timeline(), place->capture, place->graph);
  if (here) walk(here->reached_, *place);
  return here;
}

// Two captures with the same graph may be parts of one launch. Then the order of the captures gives no order of uses.
bool captured_order::is_before(epoch end, position const& next) const noexcept {
  auto const found = ends_.find(end);
  if (found == ends_.end()) return false;
  auto const& [capture, graph, era, nodes] = found->second;
  if (era < next.era_) return graph && next.graph_ && graph != next.graph_;
  auto const is_complete = [&](CUgraphNode node) {
    auto const reached = next.reached_.find(node);
    return reached != next.reached_.end() && reached->second;
  };
  return capture == next.capture_ && std::ranges::all_of(nodes, is_complete);
}

bool captured_order::is_recent(epoch end) const noexcept {
  auto const found = ends_.find(end);
  return found != ends_.end() && found->second.era == era_;
}

CUgraph captured_order::graph_of(epoch end) const noexcept {
  auto const found = ends_.find(end);
  return found == ends_.end() ? nullptr : found->second.graph;
}

void captured_order::keep_only(std::span<epoch const> epochs) {
  std::set<epoch> const kept{epochs.begin(), epochs.end()};
  std::erase_if(ends_, [&](auto const& one) { return !kept.contains(one.first); });
  limit_ = std::max(least_limit, 2 * ends_.size());
}

} // namespace gpumem::detail
