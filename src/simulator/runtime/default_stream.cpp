// Functions whose stream can be the default stream. This file is compiled twice, once with the macro
// CUDA_API_PER_THREAD_DEFAULT_STREAM. With it the runtime's header gives the functions other names
// (cudaMemcpyAsync_ptsz, cudaMemcpy_ptds).
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <type_traits>

#include "calls.hpp"

using namespace simulated_runtime;

namespace {

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool per_thread = true;
#else
constexpr bool per_thread = false;
#endif

CUstream on(cudaStream_t stream) { return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream; }

bool known(cudaMemcpyKind kind) { return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault; }

/// Runs `copy` for each of `height` rows.
template <class Copy> cudaError_t for_rows(size_t height, Copy&& copy) {
  for (size_t row = 0; row < height; ++row)
    if (cudaError_t const result = copy(row); result != cudaSuccess) return result;
  return cudaSuccess;
}

void* row_of(void* first, size_t pitch, size_t row) { return static_cast<char*>(first) + row * pitch; }
void const* row_of(void const* first, size_t pitch, size_t row) {
  return static_cast<char const*>(first) + row * pitch;
}

struct callback {
  cudaStreamCallback_t function;
  cudaStream_t stream;
  void* data;
};

} // namespace

cudaError_t cudaMemcpy(void* target, void const* source, size_t bytes, cudaMemcpyKind kind) {
  if (!known(kind)) return keep(cudaErrorInvalidMemcpyDirection);
  return in_context([&](driver_table const& cu) {
    if (!per_thread) return cu.cuMemcpy(address(target), address(source), bytes);
    CUresult const result = cu.cuMemcpyAsync(address(target), address(source), bytes, CU_STREAM_PER_THREAD);
    return result == CUDA_SUCCESS ? cu.cuStreamSynchronize(CU_STREAM_PER_THREAD) : result;
  });
}

cudaError_t cudaMemcpyAsync(void* target, void const* source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!known(kind)) return keep(cudaErrorInvalidMemcpyDirection);
  return pass<&driver_table::cuMemcpyAsync>(address(target), address(source), bytes, on(stream));
}

cudaError_t cudaMemcpy2D(void* target, size_t to_pitch, void const* source, size_t from_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return keep(cudaErrorInvalidPitchValue);
  return for_rows(height, [&](size_t row) {
    return cudaMemcpy(row_of(target, to_pitch, row), row_of(source, from_pitch, row), width, kind);
  });
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t to_pitch, void const* source, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return keep(cudaErrorInvalidPitchValue);
  return for_rows(height, [&](size_t row) {
    return cudaMemcpyAsync(row_of(target, to_pitch, row), row_of(source, from_pitch, row), width, kind, stream);
  });
}

cudaError_t cudaMemcpyBatchAsync(void* const* targets, void const* const* sources, size_t const* bytes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* first_copies, size_t attribute_count,
                                 cudaStream_t stream) {
  return pass<&driver_table::cuMemcpyBatchAsync>(
      as<CUdeviceptr>(const_cast<void**>(targets)), as<CUdeviceptr>(const_cast<void const**>(sources)),
      const_cast<size_t*>(bytes), count, as<CUmemcpyAttributes>(attributes), first_copies, attribute_count, on(stream));
}

cudaError_t cudaMemset(void* target, int value, size_t count) {
  return in_context([&](driver_table const& cu) {
    auto const byte = static_cast<unsigned char>(value);
    return per_thread ? cu.cuMemsetD8Async(address(target), byte, count, CU_STREAM_PER_THREAD)
                      : cu.cuMemsetD8(address(target), byte, count);
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
  return pass<&driver_table::cuMemsetD8Async>(address(target), static_cast<unsigned char>(value), count, on(stream));
}

cudaError_t cudaMemset2D(void* target, size_t pitch, int value, size_t width, size_t height) {
  if (width > pitch) return keep(cudaErrorInvalidPitchValue);
  return for_rows(height, [&](size_t row) { return cudaMemset(row_of(target, pitch, row), value, width); });
}

cudaError_t cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  if (width > pitch) return keep(cudaErrorInvalidPitchValue);
  return for_rows(height,
                  [&](size_t row) { return cudaMemsetAsync(row_of(target, pitch, row), value, width, stream); });
}

cudaError_t cudaMemPrefetchAsync(void const* pointer, size_t bytes, cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream) {
  return pass<&driver_table::cuMemPrefetchAsync>(address(pointer), bytes, location_of(location), flags, on(stream));
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return pass<&driver_table::cuMemAllocAsync>(as<CUdeviceptr>(pointer), bytes, on(stream));
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return pass<&driver_table::cuMemAllocFromPoolAsync>(as<CUdeviceptr>(pointer), bytes, pool, on(stream));
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return pass<&driver_table::cuMemFreeAsync>(address(pointer), on(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return pass<&driver_table::cuStreamQuery>(on(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return pass<&driver_table::cuStreamSynchronize>(on(stream)); }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return pass<&driver_table::cuStreamGetId>(on(stream), id);
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return pass<&driver_table::cuStreamGetDevice>(on(stream), device);
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return pass<&driver_table::cuStreamGetFlags>(on(stream), flags);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return pass<&driver_table::cuStreamGetPriority>(on(stream), priority);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return pass<&driver_table::cuStreamWaitEvent>(on(stream), event, flags);
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, size_t bytes, unsigned flags) {
  return pass<&driver_table::cuStreamAttachMemAsync>(on(stream), address(pointer), bytes, flags);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return pass<&driver_table::cuLaunchHostFunc>(on(stream), function, data);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned flags) {
  if (function == nullptr) return keep(cudaErrorInvalidValue);
  auto held = std::make_unique<callback>(callback{function, stream, data});
  auto const call = [](CUstream, CUresult result, void* context) {
    std::unique_ptr<callback> const entry(static_cast<callback*>(context));
    entry->function(entry->stream, static_cast<cudaError_t>(result), entry->data);
  };
  cudaError_t const result = pass<&driver_table::cuStreamAddCallback>(on(stream), +call, held.get(), flags);
  if (result == cudaSuccess) (void)held.release();
  return result;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return pass<&driver_table::cuEventRecord>(event, on(stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return pass<&driver_table::cuEventRecordWithFlags>(event, on(stream), flags);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return pass<&driver_table::cuStreamBeginCapture>(on(stream), static_cast<CUstreamCaptureMode>(mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return pass<&driver_table::cuStreamEndCapture>(on(stream), graph);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return pass<&driver_table::cuStreamIsCapturing>(on(stream), as<CUstreamCaptureStatus>(status));
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, cudaGraphNode_t const** dependencies,
                                     cudaGraphEdgeData const** edges, size_t* count) {
  return pass<&driver_table::cuStreamGetCaptureInfo>(on(stream), as<CUstreamCaptureStatus>(status), as<cuuint64_t>(id),
                                                     graph, dependencies,
                                                     reinterpret_cast<CUgraphEdgeData const**>(edges), count);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return pass<&driver_table::cuGraphLaunch>(graph, on(stream));
}

/// If the driver lacks the function, the call succeeds and sets the pointer to null.
cudaError_t cudaGetDriverEntryPointByVersion(char const* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return without_context([&](driver_table const& cu) {
    if (symbol == nullptr || function == nullptr || version > CUDA_VERSION) return CUDA_ERROR_INVALID_VALUE;
    if (flags == cudaEnableDefault && per_thread) flags = cudaEnablePerThreadDefaultStream;
    CUresult const result = cu.cuGetProcAddress(symbol, function, static_cast<int>(version), flags,
                                                as<CUdriverProcAddressQueryResult>(status));
    return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
  });
}
cudaError_t cudaGetDriverEntryPoint(char const* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaLaunchKernel(void const*, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel("cudaLaunchKernel");
}
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const*, void const*, void**) {
  return refuse_kernel("cudaLaunchKernelExC");
}
cudaError_t cudaLaunchCooperativeKernel(void const*, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel("cudaLaunchCooperativeKernel");
}
