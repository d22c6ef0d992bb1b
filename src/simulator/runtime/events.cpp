// Functions of streams, events and graphs that do not depend on the default stream.
// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

using namespace simulated_runtime;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return pass<&driver_table::cuStreamCreateWithPriority>(stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return pass<&driver_table::cuStreamDestroy>(stream); }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return pass<&driver_table::cuThreadExchangeStreamCaptureMode>(as<CUstreamCaptureMode>(mode));
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return pass<&driver_table::cuEventCreate>(event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return pass<&driver_table::cuEventDestroy>(event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return pass<&driver_table::cuEventQuery>(event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return pass<&driver_table::cuEventSynchronize>(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return pass<&driver_table::cuEventElapsedTime>(milliseconds, start, end);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return pass<&driver_table::cuGraphInstantiate>(executable, graph, flags);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return pass<&driver_table::cuGraphInstantiate>(executable, graph, flags);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return pass<&driver_table::cuGraphGetNodes>(graph, nodes, count);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return pass<&driver_table::cuGraphDestroy>(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return pass<&driver_table::cuGraphExecDestroy>(graph); }
