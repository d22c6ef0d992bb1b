// The driver functions for streams.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

/// If the stream captures, invalidates the capture and returns an error: a capturing stream cannot be queried or waited
/// for.
CUresult refuse_capturing(simulation& device, stream const& on) {
  if (device.legacy_breaks_capture(on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!on.capturing) return CUDA_SUCCESS;
  device.invalidate(*on.capturing);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult make_own_stream(simulation& device, CUstream* made, unsigned flags, int priority) {
  if (made == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  *made = device.make_stream(*device.current(), stream_kind::own, flags, std::clamp(priority, -5, 0))->handle;
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
template <entry_name Name, class Value, class Read> CUresult tell(CUstream handle, Value* value, Read read) {
  return enter_on<Name>(handle, [&](simulation& device, stream_ptr const& on) {
    if (on->capturing) {
      device.invalidate(*on->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return answer(value, read(*on));
  });
}

} // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* made, unsigned flags) {
  return enter<"cuStreamCreate", needs_context>(
      [&](simulation& device) { return make_own_stream(device, made, flags, 0); });
}

CUresult cuStreamCreateWithPriority(CUstream* made, unsigned flags, int priority) {
  return enter<"cuStreamCreateWithPriority", needs_context>(
      [&](simulation& device) { return make_own_stream(device, made, flags, priority); });
}

CUresult cuStreamDestroy(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
    return CUDA_ERROR_INVALID_HANDLE;
  return enter_on<"cuStreamDestroy">(handle, [&](simulation& device, stream_ptr const& on) {
    if (on->capturing) device.invalidate(*on->capturing);
    device.streams.erase(handle);
    on->alive = false;
    if (on->queue.empty()) device.retire(on);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return enter_on<"cuStreamQuery">(handle, [](simulation& device, stream_ptr const& on) {
    if (CUresult const refused = refuse_capturing(device, *on); refused != CUDA_SUCCESS) return refused;
    if (device.forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!device.idle(*on)) {
      device.queried_in_vain();
      return CUDA_ERROR_NOT_READY;
    }
    device.host.join(device.order_now(*on));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return enter_on<"cuStreamSynchronize">(handle, [](simulation& device, stream_ptr const& on) __attribute__((
                                                     requires_capability(simulation_mutex))) {
    if (CUresult const refused = refuse_capturing(device, *on); refused != CUDA_SUCCESS) return refused;
    if (device.forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::uint64_t const newest = on->number;
    CUresult const result = device.wait_for(on, "cuStreamSynchronize");
    if (result == CUDA_SUCCESS)
      device.pools.after_wait(device, [&](position const& freed) { return freed.on == on && freed.number <= newest; });
    return result;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return tell<"cuStreamGetId">(handle, id, [](stream const& on) { return on.id; });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* home) {
  return enter_on<"cuStreamGetCtx">(
      handle, [&](simulation&, stream_ptr const& on) { return answer(home, on->home->handle()); });
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* home, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, home);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* ordinal) {
  return tell<"cuStreamGetDevice">(handle, ordinal, [](stream const& on) { return on.home->device; });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return enter_on<"cuStreamGetPriority">(
      handle, [&](simulation&, stream_ptr const& on) { return answer(priority, on->priority); });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return tell<"cuStreamGetFlags">(handle, flags, [](stream const& on) { return on.flags; });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuLaunchHostFunc">(handle, [&](simulation& device, stream_ptr const& on) {
    operation work;
    work.action = "host function";
    work.duration = 1000;
    work.run = [function, data] { function(data); };
    return device.enqueue(on, std::move(work));
  });
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuStreamAddCallback">(handle, [&](simulation& device, stream_ptr const& on) {
    if (on->capturing) {
      device.invalidate(*on->capturing);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    operation work;
    work.action = "callback";
    work.duration = 1000;
    work.run = [=] { callback(handle, CUDA_SUCCESS, data); };
    return device.enqueue(on, std::move(work));
  });
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr, size_t, unsigned) {
  return enter_on<"cuStreamAttachMemAsync">(handle, [](simulation& device, stream_ptr const& on) {
    operation work;
    work.action = "attachment of memory";
    return device.enqueue(on, std::move(work));
  });
}

} // extern "C"
