// Entry points of stream capture and of graphs.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include <vector>

#include "entry.hpp"

using namespace simulated;

namespace {

/// Returns the status for cuStreamGetCaptureInfo and cuStreamIsCapturing.
CUstreamCaptureStatus status_of(stream const& on) {
  if (!on.capturing) return CU_STREAM_CAPTURE_STATUS_NONE;
  return on.capturing->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult begin(simulation& device, stream_ptr const& on, CUstreamCaptureMode mode) {
  if (on->kind == stream_kind::legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (on->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto open = std::make_shared<capture>();
  open->id = ++device.captures_made;
  open->mode = mode;
  open->begun_by = this_host_thread().number;
  open->enter(on);
  open->handle = static_cast<CUgraph>(device.graphs.insert(open->made));
  on->capturing = open;
  device.captures.push_back(std::move(open));
  return CUDA_SUCCESS;
}

CUresult end(simulation& device, stream_ptr const& on, CUgraph* made) {
  std::shared_ptr<capture> const open = on->capturing;
  if (!open) return CUDA_ERROR_ILLEGAL_STATE;
  if (open->mode != CU_STREAM_CAPTURE_MODE_RELAXED && open->begun_by != this_host_thread().number)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (open->members.front().on != on) {
    device.invalidate(*open);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  std::erase(device.captures, open);
  for (auto const& member : open->members) member.on->capturing.reset();
  if (open->invalid || !open->joined()) {
    device.forget_nodes(*open->made);
    device.graphs.erase(open->handle);
    return open->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  if (made != nullptr) *made = open->handle;
  return CUDA_SUCCESS;
}

CUresult instantiate(simulation& device, CUgraphExec* made, CUgraph handle) {
  auto const* source = device.graphs.find(handle);
  if (source == nullptr || made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *made = static_cast<CUgraphExec>(device.executables.insert(std::make_shared<graph>(**source)));
  return CUDA_SUCCESS;
}

/// Copies `list` to the caller, as the driver's functions for graphs do. If `to` is null, only sets `count` to the
/// length of the list. Otherwise `count` is the room at `to`: copies as many elements as fit, and fills the rest of the
/// room with zeros.
template <class T> void tell(std::vector<T> const& list, T* to, std::size_t* count) {
  std::size_t const room = to == nullptr ? 0 : *count;
  *count = to == nullptr ? list.size() : std::min(room, list.size());
  for (std::size_t i = 0; i < room; ++i) to[i] = i < list.size() ? list[i] : T{};
}

/// Returns one operation that does the work of all nodes of the graph, in the order in which they were captured.
operation launch_of(std::shared_ptr<graph> run) {
  operation work;
  work.action = "graph launch";
  for (operation const& node : run->nodes) {
    work.duration += node.duration;
    work.touches.insert(work.touches.end(), node.touches.begin(), node.touches.end());
  }
  work.run = [run = std::move(run)] {
    for (operation const& node : run->nodes)
      if (node.run) node.run();
  };
  return work;
}

} // namespace

extern "C" {

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return enter_on<"cuStreamBeginCapture">(
      handle, [&](simulation& device, stream_ptr const& on) { return begin(device, on, mode); });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* made) {
  if (made != nullptr) *made = nullptr;
  return enter_on<"cuStreamEndCapture">(
      handle, [&](simulation& device, stream_ptr const& on) { return end(device, on, made); });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamIsCapturing">(handle, [&](simulation& device, stream_ptr const& on) {
    if (device.legacy_meets_capture(*on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; // the capture stays valid
    *status = status_of(*on);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* made,
                                CUgraphNode const** dependencies, CUgraphEdgeData const** edges, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamGetCaptureInfo">(handle, [&](simulation& device, stream_ptr const& on) {
    if (device.legacy_breaks_capture(*on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(*on);
    if (id != nullptr && on->capturing) *id = on->capturing->id;
    if (made != nullptr) *made = nullptr;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    capture::member const& now = on->capturing->enter(on);
    on->told_dependencies = now.dependencies;
    on->told_edges = now.edges;
    if (made != nullptr) *made = on->capturing->handle;
    if (dependencies != nullptr) *dependencies = on->told_dependencies.data();
    if (edges != nullptr) *edges = on->told_edges.data();
    if (count != nullptr) *count = now.dependencies.size();
    return CUDA_SUCCESS;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return enter<"cuThreadExchangeStreamCaptureMode", quiet>([&](simulation&) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, this_host_thread().capture_mode);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph handle, unsigned long long) {
  return enter<"cuGraphInstantiate", needs_context>(
      [&](simulation& device) { return instantiate(device, made, handle); });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return enter<"cuGraphGetNodes">([&](simulation& device) {
    auto const* source = device.graphs.find(handle);
    if (source == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    tell((*source)->handles, nodes, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* dependencies, CUgraphEdgeData* edges,
                                    size_t* count) {
  return enter<"cuGraphNodeGetDependencies">([&](simulation& device) {
    auto const* found = device.nodes.find(handle);
    if (found == nullptr || count == nullptr || (edges != nullptr && dependencies == nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    graph_node const& node = **found;
    bool const plain = std::all_of(node.edges.begin(), node.edges.end(), [](CUgraphEdgeData const& each) {
      return each.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
    });
    if (!plain && edges == nullptr && dependencies != nullptr) return CUDA_ERROR_LOSSY_QUERY;
    size_t room = *count;
    if (edges != nullptr) tell(node.edges, edges, &room);
    tell(node.dependencies, dependencies, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  return enter_on<"cuGraphLaunch">(stream, [&](simulation& device, stream_ptr const& on) {
    auto const* source = device.executables.find(handle);
    if (source == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return device.enqueue(on, launch_of(*source));
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return enter<"cuGraphDestroy">([&](simulation& device) {
    auto const* gone = device.graphs.find(handle);
    if (gone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    device.forget_nodes(**gone);
    device.graphs.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return enter<"cuGraphExecDestroy">([&](simulation& device) {
    if (device.executables.find(handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    device.executables.erase(handle);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
