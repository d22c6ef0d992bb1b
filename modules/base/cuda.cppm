// Re-exports the names of CUDA and of CCCL (NVIDIA's C++ core libraries) that the library uses.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/cccl.hpp>
#include <cstddef>
export module gpumem:cuda;
import :namespaces;

namespace gpumem {
using ::cuda::device_ref;
using ::cuda::event_ref;
using ::cuda::std::unexpect;
} // namespace gpumem

export namespace gpumem {
using ::cuda::cuda_error;
using ::cuda::stream_ref;
using ::cuda::std::expected;
using ::cuda::std::span;
using ::cuda::std::unexpected;

/// CCCL's concepts, properties and erased types for memory resources.
namespace mr {
using ::cuda::forward_property;
using ::cuda::has_property;
using ::cuda::has_property_with;
using ::cuda::property_with_value;
using ::cuda::mr::any_resource;
using ::cuda::mr::any_synchronous_resource;
using ::cuda::mr::device_accessible;
using ::cuda::mr::dynamic_accessibility_property;
using ::cuda::mr::dynamic_resource_cast;
using ::cuda::mr::get_memory_resource;
using ::cuda::mr::get_memory_resource_t;
using ::cuda::mr::host_accessible;
using ::cuda::mr::make_any_resource;
using ::cuda::mr::make_shared_resource;
using ::cuda::mr::memory_resource_base;
using ::cuda::mr::properties_list;
using ::cuda::mr::resource_cast;
using ::cuda::mr::resource_ref;
using ::cuda::mr::resource_with;
using ::cuda::mr::shared_resource;
using ::cuda::mr::synchronous_resource;
using ::cuda::mr::synchronous_resource_adapter;
using ::cuda::mr::synchronous_resource_ref;
using ::cuda::mr::synchronous_resource_with;

/// The concept `resource` below requires several functions. Each has a concept of its own, so that a compiler's message
/// names the function that a type lacks. has_allocate requires `void* allocate(stream_ref, std::size_t bytes,
/// std::size_t alignment)`.
template <class R>
concept has_allocate = requires(R& r, stream_ref stream, std::size_t n) {
  { r.allocate(stream, n, n) } -> ::cuda::std::same_as<void*>;
};
/// Requires `void deallocate(stream_ref, void*, std::size_t bytes, std::size_t alignment)`.
template <class R>
concept has_deallocate = requires(R& r, stream_ref stream, void* pointer, std::size_t n) {
  { r.deallocate(stream, pointer, n, n) } -> ::cuda::std::same_as<void>;
};
/// Requires `void* allocate_sync(std::size_t bytes, std::size_t alignment)`.
template <class R>
concept has_allocate_sync = requires(R& r, std::size_t n) {
  { r.allocate_sync(n, n) } -> ::cuda::std::same_as<void*>;
};
/// Requires `void deallocate_sync(void*, std::size_t bytes, std::size_t alignment)`.
template <class R>
concept has_deallocate_sync = requires(R& r, void* pointer, std::size_t n) {
  { r.deallocate_sync(pointer, n, n) } -> ::cuda::std::same_as<void>;
};
/// Requires `operator==`, which returns whether one resource can free the memory that the other has allocated.
template <class R>
concept has_equality = ::cuda::std::equality_comparable<R>;

/// CCCL's concept of a resource, together with the concepts above, which require the functions one by one.
template <class R>
concept resource = has_allocate<R> && has_deallocate<R> && has_allocate_sync<R> && has_deallocate_sync<R> &&
                   has_equality<R> && ::cuda::mr::resource<R>;
} // namespace mr
} // namespace gpumem

// The driver's own C names, for the library's sources. Users include <cuda.h> or use the names in gpumem::driver_api.
using ::cudaError_t;
using ::cudaStream_t;
using ::CUcontext;
using ::CUdevice;
using ::CUdevice_attribute;
using ::CUdeviceptr;
using ::CUevent;
using ::CUfunction;
using ::CUgraph;
using ::CUmemGenericAllocationHandle;
using ::CUmemoryPool;
using ::CUmodule;
using ::CUresult;
using ::CUstream;
using ::CUstreamCaptureMode;
using ::CUstreamCaptureStatus;
using ::CUDA_SUCCESS;
using ::CUDA_ERROR_DEINITIALIZED;
using ::CUDA_ERROR_INVALID_CONTEXT;
using ::CUDA_ERROR_INVALID_VALUE;
using ::CUDA_ERROR_NO_DEVICE;
using ::CUDA_ERROR_NOT_FOUND;
using ::CUDA_ERROR_NOT_INITIALIZED;
using ::CUDA_ERROR_NOT_READY;
using ::CUDA_ERROR_NOT_SUPPORTED;
using ::CUDA_ERROR_OUT_OF_MEMORY;
using ::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
using ::CU_EVENT_DISABLE_TIMING;
using ::CU_STREAM_CAPTURE_MODE_GLOBAL;
using ::CU_STREAM_CAPTURE_MODE_RELAXED;
using ::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
using ::CU_STREAM_CAPTURE_STATUS_ACTIVE;
using ::CU_STREAM_CAPTURE_STATUS_NONE;
using ::CU_STREAM_NON_BLOCKING;

export namespace gpumem::driver_api {
using ::cudaError_t;
using ::cudaStream_t;
using ::CUcontext;
using ::CUdevice;
using ::CUdevice_attribute;
using ::CUdeviceptr;
using ::CUevent;
using ::CUfunction;
using ::CUgraph;
using ::CUmemGenericAllocationHandle;
using ::CUmemoryPool;
using ::CUmodule;
using ::CUresult;
using ::CUstream;
using ::CUstreamCaptureMode;
using ::CUstreamCaptureStatus;
using ::CUDA_SUCCESS;
using ::CUDA_ERROR_DEINITIALIZED;
using ::CUDA_ERROR_INVALID_CONTEXT;
using ::CUDA_ERROR_INVALID_VALUE;
using ::CUDA_ERROR_NO_DEVICE;
using ::CUDA_ERROR_NOT_FOUND;
using ::CUDA_ERROR_NOT_INITIALIZED;
using ::CUDA_ERROR_NOT_READY;
using ::CUDA_ERROR_NOT_SUPPORTED;
using ::CUDA_ERROR_OUT_OF_MEMORY;
using ::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
using ::CU_EVENT_DISABLE_TIMING;
using ::CU_STREAM_CAPTURE_MODE_GLOBAL;
using ::CU_STREAM_CAPTURE_MODE_RELAXED;
using ::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
using ::CU_STREAM_CAPTURE_STATUS_ACTIVE;
using ::CU_STREAM_CAPTURE_STATUS_NONE;
using ::CU_STREAM_NON_BLOCKING;
} // namespace gpumem::driver_api
