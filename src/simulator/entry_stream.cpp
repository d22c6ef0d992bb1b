// The driver functions for streams.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

/// If the stream captures, invalidates the capture and returns an error: a capturing stream cannot be queried or waited
/// for.
CUresult refuse_capturing(simulation& device, stream const& stream) {
  if (device.legacy_breaks_capture(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!stream.capturing) return CUDA_SUCCESS;
  device.invalidate(*stream.capturing);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult make_own_stream(simulation& device, CUstream* stream, unsigned flags, int priority) {
  if (stream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  *stream = device.make_stream(*device.current(), stream_kind::own, flags, std::clamp(priority, -5, 0))->handle;
  return CUDA_SUCCESS;
}

template <class T, class Value> CUresult answer(T* place, Value value) {
  if (place == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *place = value;
  return CUDA_SUCCESS;
}

} // namespace

namespace {

// Answers a question about a stream. If the stream captures, the question ends the capture, in every capture mode, as
// seen on an H100 and an H200.
template <entry_name Name, class Value, class Read> CUresult query(CUstream handle, Value* value, Read read) {
  return enter_on<Name>(handle, [&](simulation& device, stream_ptr const& stream) {
    if (stream->capturing) {
      device.invalidate(*stream->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return answer(value, read(*stream));
  });
}

} // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return enter<"cuStreamCreate", needs_context>(
      [&](simulation& device) { return make_own_stream(device, stream, flags, 0); });
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return enter<"cuStreamCreateWithPriority", needs_context>(
      [&](simulation& device) { return make_own_stream(device, stream, flags, priority); });
}

CUresult cuStreamDestroy(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  return enter_on<"cuStreamDestroy">(handle, [&](simulation& device, stream_ptr const& stream) {
    if (stream->capturing) device.invalidate(*stream->capturing);
    device.streams.erase(handle);
    stream->alive = false;
    if (stream->queue.empty()) device.retire(stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return enter_on<"cuStreamQuery">(handle, [](simulation& device, stream_ptr const& stream) {
    if (CUresult const refused = refuse_capturing(device, *stream); refused != CUDA_SUCCESS) return refused;
    if (device.forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!device.idle(*stream)) {
      device.queried_in_vain();
      return CUDA_ERROR_NOT_READY;
    }
    device.host.join(device.order_now(*stream));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return enter_on<"cuStreamSynchronize">(handle, [](simulation& device,
                                                    stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
    if (CUresult const refused = refuse_capturing(device, *stream); refused != CUDA_SUCCESS) return refused;
    if (device.forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::uint64_t const newest = stream->number;
    CUresult const result = device.wait_for(stream, "cuStreamSynchronize");
    if (result == CUDA_SUCCESS)
      device.pools.after_wait(device,
                              [&](position const& freed) { return freed.stream == stream && freed.number <= newest; });
    return result;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return query<"cuStreamGetId">(handle, id, [](stream const& stream) { return stream.id; });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* home) {
  return enter_on<"cuStreamGetCtx">(
      handle, [&](simulation&, stream_ptr const& stream) { return answer(home, stream->home->handle()); });
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* home, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, home);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* ordinal) {
  return query<"cuStreamGetDevice">(handle, ordinal, [](stream const& stream) { return stream.home->device; });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return enter_on<"cuStreamGetPriority">(
      handle, [&](simulation&, stream_ptr const& stream) { return answer(priority, stream->priority); });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return query<"cuStreamGetFlags">(handle, flags, [](stream const& stream) { return stream.flags; });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuLaunchHostFunc">(handle, [&](simulation& device, stream_ptr const& stream) {
    operation work;
    work.action = "host function";
    work.duration = 1000;
    work.run = [function, data] { function(data); };
    return device.enqueue(stream, std::move(work));
  });
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamAddCallback">(handle, [&](simulation& device, stream_ptr const& stream) {
    if (stream->capturing) {
      device.invalidate(*stream->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    operation work;
    work.action = "callback";
    work.duration = 1000;
    work.run = [=] { callback(handle, CUDA_SUCCESS, data); };
    return device.enqueue(stream, std::move(work));
  });
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr, size_t, unsigned) {
  return enter_on<"cuStreamAttachMemAsync">(handle, [](simulation& device, stream_ptr const& stream) {
    operation work;
    work.action = "attachment of memory";
    return device.enqueue(stream, std::move(work));
  });
}

} // extern "C"
