// driver_table: the functions of the simulated driver that the runtime calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

namespace simulated_runtime {

#define GPUMEM_RUNTIME_DRIVER_FUNCTIONS(X)                                                                             \
  X(cuInit)                                                                                                            \
  X(cuDriverGetVersion)                                                                                                \
  X(cuGetErrorString)                                                                                                  \
  X(cuGetProcAddress)                                                                                                  \
  X(cuDeviceGetCount)                                                                                                  \
  X(cuDeviceGetName)                                                                                                   \
  X(cuDeviceGetUuid)                                                                                                   \
  X(cuDeviceTotalMem)                                                                                                  \
  X(cuDeviceGetAttribute)                                                                                              \
  X(cuDeviceGetPCIBusId)                                                                                               \
  X(cuDeviceCanAccessPeer)                                                                                             \
  X(cuDeviceGetDefaultMemPool)                                                                                         \
  X(cuDeviceGetMemPool)                                                                                                \
  X(cuDeviceSetMemPool)                                                                                                \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  X(cuDevicePrimaryCtxReset)                                                                                           \
  X(cuDevicePrimaryCtxGetState)                                                                                        \
  X(cuDevicePrimaryCtxSetFlags)                                                                                        \
  X(cuCtxSetCurrent)                                                                                                   \
  X(cuCtxGetDevice)                                                                                                    \
  X(cuCtxSynchronize)                                                                                                  \
  X(cuCtxEnablePeerAccess)                                                                                             \
  X(cuCtxDisablePeerAccess)                                                                                            \
  X(cuCtxGetStreamPriorityRange)                                                                                       \
  X(cuStreamCreateWithPriority)                                                                                        \
  X(cuStreamDestroy)                                                                                                   \
  X(cuStreamQuery)                                                                                                     \
  X(cuStreamSynchronize)                                                                                               \
  X(cuStreamWaitEvent)                                                                                                 \
  X(cuStreamGetId)                                                                                                     \
  X(cuStreamGetDevice)                                                                                                 \
  X(cuStreamGetFlags)                                                                                                  \
  X(cuStreamGetPriority)                                                                                               \
  X(cuStreamAddCallback)                                                                                               \
  X(cuStreamAttachMemAsync)                                                                                            \
  X(cuStreamBeginCapture)                                                                                              \
  X(cuStreamEndCapture)                                                                                                \
  X(cuStreamIsCapturing)                                                                                               \
  X(cuStreamGetCaptureInfo)                                                                                            \
  X(cuThreadExchangeStreamCaptureMode)                                                                                 \
  X(cuLaunchHostFunc)                                                                                                  \
  X(cuEventCreate)                                                                                                     \
  X(cuEventDestroy)                                                                                                    \
  X(cuEventRecord)                                                                                                     \
  X(cuEventRecordWithFlags)                                                                                            \
  X(cuEventQuery)                                                                                                      \
  X(cuEventSynchronize)                                                                                                \
  X(cuEventElapsedTime)                                                                                                \
  X(cuGraphInstantiate)                                                                                                \
  X(cuGraphGetNodes)                                                                                                   \
  X(cuGraphLaunch)                                                                                                     \
  X(cuGraphDestroy)                                                                                                    \
  X(cuGraphExecDestroy)                                                                                                \
  X(cuMemAlloc)                                                                                                        \
  X(cuMemAllocManaged)                                                                                                 \
  X(cuMemHostAlloc)                                                                                                    \
  X(cuMemFree)                                                                                                         \
  X(cuMemFreeHost)                                                                                                     \
  X(cuMemHostRegister)                                                                                                 \
  X(cuMemHostUnregister)                                                                                               \
  X(cuMemHostGetDevicePointer)                                                                                         \
  X(cuMemHostGetFlags)                                                                                                 \
  X(cuMemGetInfo)                                                                                                      \
  X(cuMemAllocAsync)                                                                                                   \
  X(cuMemAllocFromPoolAsync)                                                                                           \
  X(cuMemFreeAsync)                                                                                                    \
  X(cuMemPoolCreate)                                                                                                   \
  X(cuMemPoolDestroy)                                                                                                  \
  X(cuMemPoolTrimTo)                                                                                                   \
  X(cuMemPoolSetAttribute)                                                                                             \
  X(cuMemPoolGetAttribute)                                                                                             \
  X(cuMemPoolSetAccess)                                                                                                \
  X(cuMemPoolGetAccess)                                                                                                \
  X(cuMemGetDefaultMemPool)                                                                                            \
  X(cuMemGetMemPool)                                                                                                   \
  X(cuMemSetMemPool)                                                                                                   \
  X(cuMemcpy)                                                                                                          \
  X(cuMemcpyAsync)                                                                                                     \
  X(cuMemcpyPeer)                                                                                                      \
  X(cuMemcpyPeerAsync)                                                                                                 \
  X(cuMemcpyBatchAsync)                                                                                                \
  X(cuMemsetD8)                                                                                                        \
  X(cuMemsetD8Async)                                                                                                   \
  X(cuMemPrefetchAsync)                                                                                                \
  X(cuMemAdvise)                                                                                                       \
  X(cuMemRangeGetAttribute)                                                                                            \
  X(cuMemRangeGetAttributes)                                                                                           \
  X(cuPointerGetAttributes)

/// Pointers to the driver's functions. Members have the names that the macros of the driver's header give to the
/// functions, such as cuMemAlloc_v2.
struct driver_table {
#define GPUMEM_RUNTIME_DRIVER_MEMBER(function) decltype(&::function) function;
  GPUMEM_RUNTIME_DRIVER_FUNCTIONS(GPUMEM_RUNTIME_DRIVER_MEMBER)
#undef GPUMEM_RUNTIME_DRIVER_MEMBER
};

/// Returns the functions of the simulated driver. Opens the driver at the first call. If that fails, says so on stderr
/// and returns null.
driver_table const* opened_driver() noexcept;

} // namespace simulated_runtime
