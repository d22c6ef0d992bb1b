// Own streams and the registry of every stream's identity.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:stream.impl;
import :stream;
import :cuda;
import :device;
import :driver;
import :fork;
import :timeline_table;
import :sync;
import :timeline;

namespace gpumem {
namespace {

using detail::known_handles;
using detail::known_ids;
using detail::stream_kind;
using detail::timeline;

struct idle_stream {
  timeline* order;
  int priority;
};

// Every stream ever seen. Leaked on purpose: tags keep pointers to timelines.
struct registry {
  sync::mutex guard;
  std::vector<std::unique_ptr<timeline>> timelines;
  std::unordered_map<std::uint64_t, timeline*> by_id;
  std::unordered_map<std::uint64_t, timeline*> by_default; // handle 0 and legacy: (device, kind, thread)
  std::vector<idle_stream> idle;
  timeline host{stream_kind::host, 0, 0, -1, nullptr, nullptr};

  timeline& add(stream_kind kind, std::uint64_t id, int device, CUcontext context, CUstream handle) {
    auto const index = static_cast<std::uint32_t>(timelines.size() + 1); // 0 is the host
    timelines.push_back(std::make_unique<timeline>(kind, index, id, device, context, handle));
    return *timelines.back();
  }
};

registry& streams() {
  static auto* const instance = new registry;
  return *instance;
}

// Never given to another thread, unlike a thread number.
std::uint64_t unique_thread() noexcept {
  static std::atomic<std::uint64_t> next{1};
  thread_local std::uint64_t const mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

void require_current(device where) {
  if (device::current() != where) {
    throw std::invalid_argument{"gpumem: a default stream was given while another device is current"};
  }
}

timeline& default_timeline(stream_kind kind, device where, CUstream handle) {
  auto const thread = kind == stream_kind::null ? unique_thread() : 0;
  auto const key = thread << 8 | static_cast<std::uint64_t>(where.ordinal());
  auto& all = streams();
  sync::lock const held{all.guard};
  auto const found = all.by_default.find(key);
  if (found != all.by_default.end()) return *found->second;
  auto& order = all.add(kind, 0, where.ordinal(), where.context(), handle);
  all.by_default.emplace(key, &order);
  return order;
}

int device_of_context(CUcontext context) {
  check(driver().ctx_push_current(context), "cuCtxPushCurrent");
  CUdevice handle{};
  auto const result = driver().ctx_get_device(&handle);
  CUcontext popped = nullptr;
  driver().ctx_pop_current(&popped);
  check(result, "cuCtxGetDevice");
  return static_cast<int>(handle);
}

timeline& timeline_by_id(CUstream handle, std::uint64_t id, stream_kind kind) {
  if (auto* const found = known_ids.find(id)) return *found;
  auto& all = streams();
  {
    sync::lock const held{all.guard};
    if (auto const found = all.by_id.find(id); found != all.by_id.end()) return *found->second;
  }
  CUcontext context = nullptr;
  check(driver().stream_get_ctx(handle, &context), "cuStreamGetCtx");
  auto const ordinal = device_of_context(context);
  sync::lock const held{all.guard};
  if (auto const found = all.by_id.find(id); found != all.by_id.end()) return *found->second;
  auto& order = all.add(kind, id, ordinal, context, handle);
  all.by_id.emplace(id, &order);
  known_ids.put(id, &order);
  return order;
}

std::uint64_t id_of(CUstream handle) {
  unsigned long long id = 0;
  check(driver().stream_get_id(handle, &id), "cuStreamGetId");
  return id;
}

timeline& foreign_timeline(CUstream handle, device where) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    require_current(where);
    auto const kind = handle ? stream_kind::legacy : stream_kind::null;
    return default_timeline(kind, where, handle);
  }
  if (handle == CU_STREAM_PER_THREAD) {
    require_current(where);
    return timeline_by_id(handle, id_of(handle), stream_kind::per_thread);
  }
  return timeline_by_id(handle, id_of(handle), stream_kind::foreign);
}

timeline& own_timeline(device where, int priority) {
  where.require();
  auto& all = streams();
  {
    sync::lock const held{all.guard};
    for (auto& idle : all.idle) {
      if (idle.order->device() != where.ordinal() || idle.priority != priority) continue;
      auto* const order = idle.order;
      idle = all.idle.back();
      all.idle.pop_back();
      return *order;
    }
  }
  CUstream handle = nullptr;
  {
    current_device const scope{where};
    check(driver().stream_create_with_priority(&handle, CU_STREAM_NON_BLOCKING, priority), "cuStreamCreate");
  }
  try {
    auto const id = id_of(handle);
    sync::lock const held{all.guard};
    all.idle.reserve(all.timelines.size() + 1); // so that giving back cannot fail
    auto& order = all.add(stream_kind::own, id, where.ordinal(), where.context(), handle);
    order.set_priority(priority);
    all.by_id.emplace(id, &order);
    known_handles.put(handle, &order);
    return order;
  } catch (...) {
    driver().stream_destroy(handle);
    throw;
  }
}

} // namespace

stream_key stream_key::host() noexcept { return {streams().host, nullptr, false, false}; }

stream_key stream_key::by_identity() const noexcept {
  bool const lives = timeline_->owns_handle();
  return {*timeline_, lives ? timeline_->handle() : handle_, lives, timeline_->capturing()};
}

detail::timeline* detail::seen_timeline(CUstream handle) noexcept try {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || !driver_alive()) {
    return nullptr;
  }
  auto const& ask = driver();
  unsigned long long id = 0;
  if (ask.stream_get_id(handle, &id) != CUDA_SUCCESS) return nullptr;
  auto* const found = known_ids.find(id);
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  bool const known = found && ask.stream_is_capturing(handle, &status) == CUDA_SUCCESS;
  return known && status == CU_STREAM_CAPTURE_STATUS_NONE ? found : nullptr;
} catch (...) { // there is no driver
  return nullptr;
}

bool detail::is_capturing(CUstream handle) {
  auto const* const known = known_timeline(handle);
  if (known) check(loss_of(known->device()), "cuStreamIsCapturing");
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const result = driver().stream_is_capturing(handle, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true; // another stream's capture forbids even the question
  check(known ? judge(known->device(), result) : result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

stream_key identify(stream_ref stream, device where) {
  auto const handle = stream.get();
  if (auto* const order = detail::known_timeline(handle)) return stream_key::known(*order, handle);
  auto& order = foreign_timeline(handle, where);
  return {order, handle, true, detail::is_capturing(handle)};
}

stream_key identify(stream_ref stream) {
  auto const handle = stream.get();
  if (auto* const order = detail::known_timeline(handle)) return stream_key::known(*order, handle);
  return identify(stream, device::current());
}

// Handle 0 is a legacy or a per-thread stream, as the caller was compiled: only the context covers both.
CUresult stream_key::wait_on_host() const noexcept {
  if (is_host()) return CUDA_SUCCESS;
  if (auto const loss = detail::loss_of(timeline_->device()); loss != CUDA_SUCCESS) return loss;
  auto const context = timeline_->context();
  auto const seen = timeline_->close_epoch();
  if (auto const result = driver().ctx_push_current(context); result != CUDA_SUCCESS) return result;
  bool const by_handle = has_handle_ && timeline_->kind() != stream_kind::null;
  auto const result = by_handle ? driver().stream_synchronize(handle_) : driver().ctx_synchronize();
  CUcontext popped = nullptr;
  driver().ctx_pop_current(&popped);
  if (result == CUDA_SUCCESS) timeline_->publish_completed(seen);
  return detail::judge(timeline_->device(), result);
}

stream::stream(detail::timeline& order, bool owned) noexcept
    : stream_ref{order.handle()}, timeline_{&order}, owned_{owned} {}

stream::stream(gpumem::device where, int priority) : stream{own_timeline(where, priority), true} {
  timeline_->prepare();
}

stream::stream(stream&& other) noexcept
    : stream_ref{other}, timeline_{std::exchange(other.timeline_, nullptr)}, owned_{other.owned_} {}

stream& stream::operator=(stream&& other) noexcept {
  if (this == &other) return *this;
  retire();
  stream_ref::operator=(other);
  timeline_ = std::exchange(other.timeline_, nullptr);
  owned_ = other.owned_;
  return *this;
}

stream::~stream() { retire(); }

void stream::retire() noexcept {
  if (!timeline_ || detail::forked()) return;
  auto& all = streams();
  // The tail of a stream that nobody will use again is completed by an event recorded while it lives.
  timeline_->record_late(timeline_->handle());
  sync::lock const held{all.guard};
  if (owned_) {
    all.idle.push_back({timeline_, timeline_->priority()});
  } else {
    if (!timeline_->adopt(false)) known_handles.put(timeline_->handle(), nullptr);
  }
  timeline_ = nullptr;
}

stream stream::adopt(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    throw std::invalid_argument{"gpumem: a default stream cannot be adopted"};
  }
  auto& order = timeline_by_id(handle, id_of(handle), stream_kind::foreign);
  order.prepare();
  auto& all = streams();
  sync::lock const held{all.guard};
  if (!known_handles.put(handle, &order)) throw std::bad_alloc{};
  order.adopt(true);
  return stream{order, false};
}

gpumem::device stream::device() const { return gpumem::device{timeline_->device()}; }

stream_key stream::key() const noexcept { return {*timeline_, get(), true, timeline_->capturing()}; }

void stream::synchronize() {
  device().refuse_lost();
  auto const seen = timeline_->close_epoch();
  check(device().judge(driver().stream_synchronize(get())), "cuStreamSynchronize");
  timeline_->publish_completed(seen);
}

void stream::begin_capture(CUstreamCaptureMode mode) {
  device().refuse_lost();
  check(device().judge(driver().stream_begin_capture(get(), mode)), "cuStreamBeginCapture");
  timeline_->set_capturing(true);
}

CUgraph stream::end_capture() {
  CUgraph graph = nullptr;
  timeline_->set_capturing(false);
  check(driver().stream_end_capture(get(), &graph), "cuStreamEndCapture");
  return graph;
}

} // namespace gpumem
