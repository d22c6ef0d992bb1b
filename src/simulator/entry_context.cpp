// Entry points of contexts.
// SPDX-License-Identifier: Apache-2.0
#include "entry.hpp"

using namespace simulated;

namespace {

context* primary_of(simulation& device, CUdevice ordinal) {
  if (ordinal < 0 || ordinal >= device.options().devices) return nullptr;
  return device.primaries[static_cast<std::size_t>(ordinal)].get();
}

/// Returns the context of a handle; null if there is none.
context* known(simulation& device, CUcontext handle) {
  for (auto const& home : device.primaries)
    if (home->handle() == handle) return home.get();
  return nullptr;
}

/// Returns the context of the handle, or the current one for a null handle; null if there is none.
context* given_or_current(simulation& device, CUcontext handle) {
  return handle == nullptr ? device.current() : known(device, handle);
}

} // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  return enter<"cuDevicePrimaryCtxRetain">([&](simulation& device) {
    context* home = primary_of(device, ordinal);
    if (home == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++home->retained;
    device.activate(*home);
    *handle = home->handle();
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return enter<"cuDevicePrimaryCtxRelease">([&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
    context* home = primary_of(device, ordinal);
    if (home == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (home->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--home->retained != 0) return CUDA_SUCCESS;
    CUresult const waited = device.wait_for_all(*home, "cuDevicePrimaryCtxRelease");
    device.destroy(*home);
    return waited;
  });
}

/// Resets the context: its streams, events and memory are destroyed. The context stays current on its threads, but
/// calls in it fail as in a destroyed context, and so do calls that wait now. Handles of its objects stay invalid even
/// after the context is active again.
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return enter<"cuDevicePrimaryCtxReset", before_init>([&](simulation& device) {
    context* home = primary_of(device, ordinal);
    if (home == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    device.faults.stick(CUDA_SUCCESS);
    if (home->active) device.destroy(*home);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return enter<"cuDevicePrimaryCtxGetState">([&](simulation& device) {
    context const* home = primary_of(device, ordinal);
    if (home == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != nullptr) *flags = home->flags;
    if (active != nullptr) *active = home->active ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
  return enter<"cuDevicePrimaryCtxSetFlags">([&](simulation& device) {
    context* home = primary_of(device, ordinal);
    if (home == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    home->flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return enter<"cuCtxSetCurrent", quiet>([&](simulation& device) {
    auto& stack = this_host_thread().contexts;
    context* home = known(device, handle);
    if (handle != nullptr && home == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop();
    return home == nullptr || stack.push(home) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return enter<"cuCtxGetCurrent", quiet>([&](simulation& device) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    context const* home = device.current();
    *handle = home == nullptr ? nullptr : home->handle();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  return enter<"cuCtxPushCurrent", quiet>([&](simulation& device) {
    context* home = known(device, handle);
    if (home == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return this_host_thread().contexts.push(home) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult cuCtxPopCurrent(CUcontext* handle) {
  return enter<"cuCtxPopCurrent", quiet>([&](simulation&) {
    auto& stack = this_host_thread().contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = stack.back()->handle();
    stack.pop();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* ordinal) {
  return enter<"cuCtxGetDevice", (needs_context | quiet)>([&](simulation& device) {
    if (ordinal == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *ordinal = device.current()->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return enter<"cuCtxGetFlags", (needs_context | quiet)>([&](simulation& device) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = device.current()->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return enter<"cuCtxGetId", quiet>([&](simulation& device) {
    context const* home = given_or_current(device, handle);
    if (home == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!home->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = home->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return enter<"cuCtxGetApiVersion", quiet>([&](simulation& device) {
    if (given_or_current(device, handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return enter<"cuCtxSynchronize", (needs_context | unsafe_in_capture)>([](simulation& device) GPUMEM_REQUIRES(
                                                                            simulation_mutex) {
    context& home = *device.current();
    if (device.breaks_captures_of(home)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    vector_clock order_at_call = home.ended;
    for (stream_ptr const& stream : home.streams) order_at_call.join(stream->order);
    CUresult const result = device.wait_for_all(home, "cuCtxSynchronize");
    if (result != CUDA_SUCCESS) return result;
    device.host.join(order_at_call);
    device.pools.after_wait(device, [&](position const& freed) { return freed.stream->home == &home && freed.done(); });
    return result;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  return enter<"cuCtxEnablePeerAccess", (needs_context | quiet)>([&](simulation& device) {
    context const* peer = known(device, handle);
    if (peer == nullptr || peer == device.current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return device.current()->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return enter<"cuCtxDisablePeerAccess", (needs_context | quiet)>([&](simulation& device) {
    context const* peer = known(device, handle);
    if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return device.current()->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return enter<"cuCtxGetStreamPriorityRange", (needs_context | quiet)>([&](simulation&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
