// Entry points of stream capture and of graphs.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include <vector>

#include "entry.hpp"

using namespace simulated;

namespace {

/// Returns the status for cuStreamGetCaptureInfo and cuStreamIsCapturing.
CUstreamCaptureStatus status_of(stream const& stream) {
  if (!stream.capturing) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capturing->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult begin(simulation& device, stream_ptr const& stream, CUstreamCaptureMode mode) {
  if (stream->kind == stream_kind::legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto open = std::make_shared<capture>();
  open->id = ++device.captures_made;
  open->mode = mode;
  open->begun_by = this_host_thread().number;
  open->enter(stream);
  open->handle = static_cast<CUgraph>(device.graphs.insert(open->made));
  stream->capturing = open;
  device.captures.push_back(std::move(open));
  return CUDA_SUCCESS;
}

CUresult end(simulation& device, stream_ptr const& stream, CUgraph* graph) {
  std::shared_ptr<capture> const open = stream->capturing;
  if (!open) return CUDA_ERROR_ILLEGAL_STATE;
  if (open->mode != CU_STREAM_CAPTURE_MODE_RELAXED && open->begun_by != this_host_thread().number)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (open->members.front().stream != stream) {
    device.invalidate(*open);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  std::erase(device.captures, open);
  for (auto const& member : open->members) member.stream->capturing.reset();
  if (open->invalid || !open->joined()) {
    device.forget_nodes(*open->made);
    device.graphs.erase(open->handle);
    return open->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  if (graph != nullptr) *graph = open->handle;
  return CUDA_SUCCESS;
}

CUresult instantiate(simulation& device, CUgraphExec* executable, CUgraph handle) {
  auto const* source = device.graphs.find(handle);
  if (source == nullptr || executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *executable = static_cast<CUgraphExec>(device.executables.insert(std::make_shared<graph>(**source)));
  return CUDA_SUCCESS;
}

/// Copies `list` to the caller, as the driver's functions for graphs do. If `copy` is null, only sets `count` to the
/// length of the list. Otherwise `count` is the room at `copy`: copies as many elements as fit, and fills the rest of
/// the room with zeros.
template <class T> void copy_list(std::vector<T> const& list, T* copy, std::size_t* count) {
  std::size_t const room = copy == nullptr ? 0 : *count;
  *count = copy == nullptr ? list.size() : std::min(room, list.size());
  for (std::size_t i = 0; i < room; ++i) copy[i] = i < list.size() ? list[i] : T{};
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
      handle, [&](simulation& device, stream_ptr const& stream) { return begin(device, stream, mode); });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  if (graph != nullptr) *graph = nullptr;
  return enter_on<"cuStreamEndCapture">(
      handle, [&](simulation& device, stream_ptr const& stream) { return end(device, stream, graph); });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamIsCapturing">(handle, [&](simulation& device, stream_ptr const& stream) {
    if (device.legacy_meets_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; // the capture stays valid
    *status = status_of(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                CUgraphNode const** dependencies, CUgraphEdgeData const** edges, size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamGetCaptureInfo">(handle, [&](simulation& device, stream_ptr const& stream) {
    if (device.legacy_breaks_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(*stream);
    if (id != nullptr && stream->capturing) *id = stream->capturing->id;
    if (graph != nullptr) *graph = nullptr;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    capture::member const& now = stream->capturing->enter(stream);
    stream->returned_dependencies = now.dependencies;
    stream->returned_edges = now.edges;
    if (graph != nullptr) *graph = stream->capturing->handle;
    if (dependencies != nullptr) *dependencies = stream->returned_dependencies.data();
    if (edges != nullptr) *edges = stream->returned_edges.data();
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

CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph handle, unsigned long long) {
  return enter<"cuGraphInstantiate", needs_context>(
      [&](simulation& device) { return instantiate(device, executable, handle); });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return enter<"cuGraphGetNodes">([&](simulation& device) {
    auto const* source = device.graphs.find(handle);
    if (source == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    copy_list((*source)->handles, nodes, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* dependencies, CUgraphEdgeData* edges,
                                    size_t* count) {
  return enter<"cuGraphNodeGetDependencies">([&](simulation& device) {
    auto const* graph_record = device.nodes.find(handle);
    if (graph_record == nullptr || count == nullptr || (edges != nullptr && dependencies == nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    graph_node const& node = **graph_record;
    bool const plain = std::all_of(node.edges.begin(), node.edges.end(), [](CUgraphEdgeData const& each) {
      return each.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT;
    });
    if (!plain && edges == nullptr && dependencies != nullptr) return CUDA_ERROR_LOSSY_QUERY;
    size_t room = *count;
    if (edges != nullptr) copy_list(node.edges, edges, &room);
    copy_list(node.dependencies, dependencies, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  return enter_on<"cuGraphLaunch">(stream, [&](simulation& device, stream_ptr const& stream) {
    auto const* source = device.executables.find(handle);
    if (source == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return device.enqueue(stream, launch_of(*source));
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return enter<"cuGraphDestroy">([&](simulation& device) {
    auto const* graph = device.graphs.find(handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    device.forget_nodes(**graph);
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
