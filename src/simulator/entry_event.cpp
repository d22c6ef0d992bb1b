// Entry points of events and of waits for events.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

constexpr unsigned known_flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

template <entry_name Name, unsigned Rules = plain, class Body> CUresult enter_for(CUevent handle, Body&& body) {
  return enter<Name, Rules>([&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
    CUresult error;
    std::shared_ptr<event> const found = device.resolve(handle, error);
    return found ? body(device, *found) : error;
  });
}

std::shared_ptr<record> new_record(event& event) {
  auto made = std::make_shared<record>();
  made->event = event.serial;
  made->never_completes = std::exchange(event.next_never_completes, false);
  return made;
}

CUresult record_on(simulation& device, event& marked, stream_ptr const& stream) {
  if (marked.home != stream->home) return CUDA_ERROR_INVALID_HANDLE;
  if (device.legacy_breaks_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capturing) {
    if (stream->capturing->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    marked.captured = stream->capturing;
    marked.captured_order = stream->capturing->enter(stream).order;
    marked.covered = stream->capturing->enter(stream).dependencies;
    return CUDA_SUCCESS;
  }
  marked.captured.reset();
  marked.last = new_record(marked);
  operation work;
  work.action = "event record";
  work.recorded = marked.last;
  return device.enqueue(stream, std::move(work));
}

/// Makes the stream join the capture in which the event was recorded, because the stream waits for the event. If the
/// stream must not join, invalidates the capture.
CUresult join_capture(simulation& device, stream_ptr const& stream, event const& event) {
  capture& open = *event.captured;
  if (open.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->kind == stream_kind::legacy) {
    device.invalidate(open);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capturing && stream->capturing != event.captured) {
    device.invalidate(open);
    device.invalidate(*stream->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  stream->capturing = event.captured;
  open.enter(stream).order.join(event.captured_order);
  open.depend(stream, event.covered);
  return CUDA_SUCCESS;
}

CUresult wait_on(simulation& device, stream_ptr const& stream, event const& event) {
  if (event.captured) return join_capture(device, stream, event);
  if (stream->capturing) {
    device.invalidate(*stream->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (device.legacy_breaks_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!event.last) return CUDA_SUCCESS;
  operation work;
  work.action = "wait for an event";
  work.awaited = event.last;
  return device.enqueue(stream, std::move(work));
}

CUresult refuse_captured(simulation& device, event const& event) {
  if (!event.captured) return device.forbidden_by_capture() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  device.invalidate(*event.captured);
  return CUDA_ERROR_CAPTURED_EVENT;
}

} // namespace

extern "C" {

CUresult cuEventCreate(CUevent* result, unsigned flags) {
  return enter<"cuEventCreate", needs_context>([&](simulation& device) {
    if (result == nullptr || (flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto fresh = std::make_shared<event>();
    fresh->serial = ++device.events_made;
    fresh->home = device.current();
    fresh->flags = flags;
    *result = fresh->handle = static_cast<CUevent>(device.events.insert(fresh));
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
  return enter_on<"cuEventRecord">(stream, [&](simulation& device, stream_ptr const& stream) {
    CUresult error;
    auto const marked = device.resolve(handle, error);
    return marked ? record_on(device, *marked, stream) : error;
  });
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  return enter_on<"cuEventRecordWithFlags">(stream, [&](simulation& device, stream_ptr const& stream) {
    CUresult error;
    auto const marked = device.resolve(handle, error);
    return marked ? record_on(device, *marked, stream) : error;
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
    for (stream_ptr const& stream : home->streams) {
      marked.last->order.join(stream->order);
      if (!stream->queue.empty()) marked.last->covers.push_back({stream, stream->number});
    }
    marked.last->order.join(home->ended);
    marked.last->time = device.host_time;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  return enter_on<"cuStreamWaitEvent">(stream, [&](simulation& device, stream_ptr const& stream) {
    CUresult error;
    auto const awaited = device.resolve(handle, error);
    return awaited ? wait_on(device, stream, *awaited) : error;
  });
}

CUresult cuEventQuery(CUevent handle) {
  return enter_for<"cuEventQuery">(handle, [](simulation& device, event& event) {
    if (CUresult const refused = refuse_captured(device, event); refused != CUDA_SUCCESS) return refused;
    if (!event.last) return CUDA_SUCCESS;
    if (!event.last->done()) {
      device.queried_in_vain();
      return CUDA_ERROR_NOT_READY;
    }
    device.host.join(event.last->order);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return enter_for<"cuEventSynchronize">(handle, [](simulation& device,
                                                    event& event) GPUMEM_REQUIRES(simulation_mutex) {
    if (CUresult const refused = refuse_captured(device, event); refused != CUDA_SUCCESS) return refused;
    if (!event.last) return CUDA_SUCCESS;
    std::shared_ptr<record> const record = event.last;
    std::string const call = "cuEventSynchronize for event " + std::to_string(event.serial);
    auto const is_done = [&] { return record->done(); };
    std::uint64_t const id = event.home->id;
    if (CUresult const result = device.block_until(call, is_done); result != CUDA_SUCCESS) return result;
    if (CUresult const result = simulation::after_wait(*event.home, id); result != CUDA_SUCCESS) return result;
    device.host_time = std::max(device.host_time, record->time);
    device.host.join(record->order);
    device.pools.after_wait(device, [&](position const& freed) {
      return std::any_of(record->covers.begin(), record->covers.end(),
                         [&](position const& end) { return end.stream == freed.stream && end.number >= freed.number; });
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return enter<"cuEventElapsedTime">([&](simulation& device) {
    CUresult error;
    auto const first = device.resolve(start, error);
    auto const last = first ? device.resolve(end, error) : nullptr;
    if (!last) return error;
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
