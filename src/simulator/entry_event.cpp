// Entry points of events and of waits for events.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

constexpr unsigned known_flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

template <entry_name Name, unsigned Rules = plain, class Body> CUresult enter_for(CUevent handle, Body&& body) {
  return enter<Name, Rules>([&](simulation& device) __attribute__((requires_capability(simulation_mutex))) {
    CUresult why;
    std::shared_ptr<event> const found = device.resolve(handle, why);
    return found ? body(device, *found) : why;
  });
}

std::shared_ptr<record> new_record(event& of) {
  auto made = std::make_shared<record>();
  made->event = of.serial;
  made->never = std::exchange(of.never_next, false);
  return made;
}

CUresult record_on(simulation& device, event& marked, stream_ptr const& on) {
  if (marked.home != on->home) return CUDA_ERROR_INVALID_HANDLE;
  if (device.legacy_breaks_capture(*on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (on->capturing) {
    if (on->capturing->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    marked.captured = on->capturing;
    marked.captured_order = on->capturing->enter(on).order;
    marked.covered = on->capturing->enter(on).dependencies;
    return CUDA_SUCCESS;
  }
  marked.captured.reset();
  marked.last = new_record(marked);
  operation work;
  work.action = "event record";
  work.recorded = marked.last;
  return device.enqueue(on, std::move(work));
}

/// Makes the stream join the capture in which the event was recorded, because the stream waits for the event. If the
/// stream must not join, invalidates the capture.
CUresult join_capture(simulation& device, stream_ptr const& on, event const& awaited) {
  capture& open = *awaited.captured;
  if (open.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (on->kind == stream_kind::legacy) {
    device.invalidate(open);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (on->capturing && on->capturing != awaited.captured) {
    device.invalidate(open);
    device.invalidate(*on->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  on->capturing = awaited.captured;
  open.enter(on).order.join(awaited.captured_order);
  open.depend(on, awaited.covered);
  return CUDA_SUCCESS;
}

CUresult wait_on(simulation& device, stream_ptr const& on, event const& awaited) {
  if (awaited.captured) return join_capture(device, on, awaited);
  if (on->capturing) {
    device.invalidate(*on->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (device.legacy_breaks_capture(*on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!awaited.last) return CUDA_SUCCESS;
  operation work;
  work.action = "wait for an event";
  work.awaited = awaited.last;
  return device.enqueue(on, std::move(work));
}

CUresult refuse_captured(simulation& device, event const& asked) {
  if (!asked.captured) return device.forbidden_by_capture() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  device.invalidate(*asked.captured);
  return CUDA_ERROR_CAPTURED_EVENT;
}

} // namespace

extern "C" {

CUresult cuEventCreate(CUevent* made, unsigned flags) {
  return enter<"cuEventCreate", needs_context>([&](simulation& device) {
    if (made == nullptr || (flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto fresh = std::make_shared<event>();
    fresh->serial = ++device.events_made;
    fresh->home = device.current();
    fresh->flags = flags;
    *made = fresh->handle = static_cast<CUevent>(device.events.insert(fresh));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent handle) {
  return enter_for<"cuEventDestroy">(handle, [&](simulation& device, event&) {
    device.events.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return enter_on<"cuEventRecord">(stream, [&](simulation& device, stream_ptr const& on) {
    CUresult why;
    auto const marked = device.resolve(handle, why);
    return marked ? record_on(device, *marked, on) : why;
  });
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuEventRecordWithFlags">(stream, [&](simulation& device, stream_ptr const& on) {
    CUresult why;
    auto const marked = device.resolve(handle, why);
    return marked ? record_on(device, *marked, on) : why;
  });
}

CUresult cuCtxRecordEvent(CUcontext context_handle, CUevent handle) {
  return enter_for<"cuCtxRecordEvent">(handle, [&](simulation& device, event& marked) {
    auto* home = reinterpret_cast<context*>(context_handle);
    if (home == nullptr) home = device.current();
    if (home == nullptr || !home->active || marked.home != home) return CUDA_ERROR_INVALID_HANDLE;
    if (device.breaks_captures_of(*home)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    marked.captured.reset();
    marked.last = new_record(marked);
    for (stream_ptr const& on : home->streams) {
      marked.last->order.join(on->order);
      if (!on->queue.empty()) marked.last->covers.push_back({on, on->number});
    }
    marked.last->order.join(home->ended);
    marked.last->time = device.host_time;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  return enter_on<"cuStreamWaitEvent">(stream, [&](simulation& device, stream_ptr const& on) {
    CUresult why;
    auto const awaited = device.resolve(handle, why);
    return awaited ? wait_on(device, on, *awaited) : why;
  });
}

CUresult cuEventQuery(CUevent handle) {
  return enter_for<"cuEventQuery">(handle, [](simulation& device, event& asked) {
    if (CUresult const refused = refuse_captured(device, asked); refused != CUDA_SUCCESS) return refused;
    if (!asked.last) return CUDA_SUCCESS;
    if (!asked.last->done()) {
      device.queried_in_vain();
      return CUDA_ERROR_NOT_READY;
    }
    device.host.join(asked.last->order);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return enter_for<"cuEventSynchronize">(
      handle, [](simulation& device, event& asked) __attribute__((requires_capability(simulation_mutex))) {
        if (CUresult const refused = refuse_captured(device, asked); refused != CUDA_SUCCESS) return refused;
        if (!asked.last) return CUDA_SUCCESS;
        std::shared_ptr<record> const awaited = asked.last;
        std::string const what = "cuEventSynchronize for event " + std::to_string(asked.serial);
        auto const done = [&] { return awaited->done(); };
        std::uint64_t const id = asked.home->id;
        if (CUresult const result = device.block_until(what, done); result != CUDA_SUCCESS) return result;
        if (CUresult const result = simulation::after_wait(*asked.home, id); result != CUDA_SUCCESS) return result;
        device.host_time = std::max(device.host_time, awaited->time);
        device.host.join(awaited->order);
        device.pools.after_wait(device, [&](position const& freed) {
          return std::any_of(awaited->covers.begin(), awaited->covers.end(),
                             [&](position const& end) { return end.on == freed.on && end.number >= freed.number; });
        });
        return CUDA_SUCCESS;
      });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return enter<"cuEventElapsedTime">([&](simulation& device) {
    CUresult why;
    auto const first = device.resolve(start, why);
    auto const last = first ? device.resolve(end, why) : nullptr;
    if (!last) return why;
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!first->last || !last->last || ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING) != 0)
      return CUDA_ERROR_INVALID_HANDLE;
    if (!first->last->done() || !last->last->done()) return CUDA_ERROR_NOT_READY;
    auto const from = static_cast<std::int64_t>(first->last->time);
    *milliseconds = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(last->last->time) - from) * 1e-6);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
