// Makes and reuses timelines, and finds them by handle and id.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:timeline_registry.impl;
import :timeline_registry;
import :cuda;
import :device;
import :driver;
import :intrusive_list;
import :process;
import :stream_epochs;
import :stream_identity;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t wanted_spare_timelines = 2;
inline constexpr int max_tries = 2; // dead timelines that are tried for a new stream; each try is a poll
// A dead stream is stranded if no event covers its last frees. These limits are for the number of stranded streams and
// for the bytes of those frees. When either is reached, each free on a mortal stream records an event from then on.
inline constexpr std::size_t max_stranded = 64, max_stranded_bytes = std::size_t{32} << 20;

} // namespace

stream_timeline& timeline_store::take(stream_kind kind, std::uint64_t id, int device, CUcontext context,
                                      CUstream handle) {
  auto* timeline = take_dead(context);
  if (!timeline) {
    try {
      auto& made = make(kind, id, device, context, handle, true);
      make_spares(device, context);
      return made;
    } catch (...) {
      timeline = take_spare(context);
      if (!timeline) throw;
    }
  }
  timeline->rebind(kind, id, handle);
  return *timeline;
}

stream_timeline& timeline_store::make(stream_kind kind, std::uint64_t id, int device, CUcontext context,
                                      CUstream handle, bool may_die) {
  auto* const last = may_die ? take_event(context) : nullptr;
  try {
    auto const index = static_cast<std::uint32_t>(timelines_.size() + 1); // 0 is the host
    timelines_.push_back(std::make_unique<stream_timeline>(kind, index, id, device, context, handle, last));
    return *timelines_.back();
  } catch (...) {
    if (last) give_event(last);
    throw;
  }
}

// A timeline with frees that no event covers is never known to be complete, so it is not reused.
void timeline_store::retire(stream_timeline& dead) noexcept {
  dead.end();
  if (dead.epochs().uncovered_frees() == 0) return dead_.push_front(dead);
  ++stranded_;
  stranded_bytes_ += dead.epochs().uncovered_bytes();
  if (stranded_ >= max_stranded || stranded_bytes_ >= max_stranded_bytes) {
    note_uncovered_memory(uncovered_memory::dead_streams, true);
  }
}

// Returns a reusable dead timeline of the context; null if a few tries find none. Tries the newest first: a program
// that makes a stream for each request next asks for the memory that the newest dead stream freed. A timeline that is
// not reusable yet moves to the end, so that one with long work does not block others.
stream_timeline* timeline_store::take_dead(CUcontext context) noexcept {
  for (int tries = 0; tries < max_tries && !dead_.empty(); ++tries) {
    auto& newest = *dead_.first();
    dead_.remove(newest);
    if (newest.context() == context && newest.is_reusable()) return &newest;
    dead_.push_back(newest);
  }
  return nullptr;
}

stream_timeline* timeline_store::take_spare(CUcontext context) noexcept {
  auto* found = spare_.first();
  while (found && found->context() != context) found = found->links_.next;
  if (found) spare_.remove(*found);
  return found;
}

void timeline_store::make_spares(int device, CUcontext context) noexcept {
  std::size_t spares = 0;
  for (auto const* each = spare_.first(); each; each = each->links_.next) spares += each->context() == context;
  try {
    for (; spares < wanted_spare_timelines; ++spares) {
      spare_.push_back(make(stream_kind::foreign, 0, device, context, nullptr, true));
    }
  } catch (...) {
    // The next new stream tries again.
  }
}

namespace {

// The list of the calling thread's default streams.
thread_local constinit intrusive_list<stream_timeline> own_defaults;

int device_of_context(CUcontext context) {
  context_guard const here{context};
  check(here.result(), "cuCtxPushCurrent");
  CUdevice handle{};
  check(driver().ctx_get_device(&handle), "cuCtxGetDevice");
  return static_cast<int>(handle);
}

std::uint64_t id_of(CUstream handle) {
  unsigned long long id = 0;
  check(driver().stream_get_id(handle, &id), "cuStreamGetId");
  return id;
}

// Asks the driver whether a new owner may get the stream: its work must not go into the graph of another owner.
bool is_free_of_capture(stream_timeline const& idle) noexcept { return !idle.captures(idle.handle()); }

} // namespace

// Takes no host memory: noexcept functions call it, such as stream_key::host().
timeline_registry& timeline_registry::instance() noexcept {
  alignas(timeline_registry) static std::byte place[sizeof(timeline_registry)];
  static auto* const registry = ::new (place) timeline_registry;
  return *registry;
}

stream_timeline* timeline_registry::find(CUstream handle) const noexcept {
  if (auto* const found = seen_handles.find(handle)) return found;
  auto const found = other_streams_.find(handle);
  return found == other_streams_.end() ? nullptr : found->second;
}

void timeline_registry::put(CUstream handle, stream_timeline& timeline) {
  if (seen_handles.put(handle, &timeline)) return;
  other_streams_.insert_or_assign(handle, &timeline);
  has_other_streams_.store(true, std::memory_order_release);
}

stream_timeline* timeline_registry::find_beyond_table(CUstream handle) const noexcept {
  if (!has_other_streams_.load(std::memory_order_acquire)) return nullptr;
  sync::lock const lock{mutex_};
  auto const found = other_streams_.find(handle);
  return found == other_streams_.end() ? nullptr : found->second;
}

// The driver is not asked for the id of a stream that lives, since no other stream gets its handle.
stream_timeline& timeline_registry::of_handle(CUstream handle) {
  {
    sync::lock const lock{mutex_};
    if (auto* const found = find(handle); found && found->owns_handle()) return *found;
  }
  auto const id = id_of(handle);
  {
    sync::lock const lock{mutex_};
    if (auto* const found = find(handle); found && found->id() == id) return *found;
  }
  CUcontext context = nullptr;
  check(driver().stream_get_ctx(handle, &context), "cuStreamGetCtx");
  auto const device = device_of_context(context);
  sync::lock const lock{mutex_};
  auto* const handle_timeline = find(handle);
  if (handle_timeline && handle_timeline->id() == id) return *handle_timeline; // another thread was faster
  if (handle_timeline && handle_timeline->id() == 0 &&
      handle_timeline->context() == context) { // seen only in captures so far
    handle_timeline->name(id);
    return *handle_timeline;
  }
  // If `handle_timeline` is not null, the handle belonged to a stream that was destroyed. If all work of that stream is
  // complete, as is usual, the new stream takes over its timeline.
  if (handle_timeline && handle_timeline->context() == context && handle_timeline->kind() == stream_kind::foreign &&
      handle_timeline->is_reusable()) {
    handle_timeline->rebind(stream_kind::foreign, id, handle);
    return *handle_timeline;
  }
  auto& timeline = store_.take(stream_kind::foreign, id, device, context, handle);
  put(handle, timeline);
  if (handle_timeline) store_.retire(*handle_timeline);
  return timeline;
}

// Returns the timeline that has the handle, even if it is that of an earlier stream; the driver is not asked for the
// id. That does no harm: the work of a capturing stream belongs to the graph, so the timeline only tells which calls
// belong to one stream. A timeline without an id gets that of the stream that the next call outside a capture is given
// with the handle.
stream_timeline& timeline_registry::of_capturing(CUstream handle, device device) {
  auto const capture = id_of_capture(handle);
  sync::lock const lock{mutex_};
  auto* found = find(handle);
  if (!found) {
    found = &store_.take(stream_kind::foreign, 0, device.ordinal(), device.context(), handle);
    put(handle, *found);
  }
  if (capture != 0) found->enter_capture(capture);
  return *found;
}

stream_timeline& timeline_registry::of_default(stream_kind kind, device home, CUstream handle, bool capturing) {
  auto const device = static_cast<std::size_t>(home.ordinal());
  if (kind == stream_kind::legacy) {
    sync::lock const lock{mutex_};
    if (legacy_.size() <= device) legacy_.resize(device + 1);
    if (!legacy_[device]) legacy_[device] = &store_.make(kind, 0, home.ordinal(), home.context(), handle, false);
    return *legacy_[device];
  }
  auto const id = kind == stream_kind::per_thread && !capturing ? id_of(handle) : 0;
  for (auto* each = own_defaults.first(); each; each = each->links_.next) {
    if (each->kind() != kind || each->device() != home.ordinal()) continue;
    if (each->id() == 0) each->name(id); // seen only in captures so far
    if (each->id() == id || capturing) return *each;
  }
  // The destructor of a thread_local object may use a default stream after end_thread() has run. Then this registers
  // end_thread() again.
  if (own_defaults.empty()) sync::at_thread_exit(end_thread);
  sync::lock const lock{mutex_};
  auto& timeline = store_.take(kind, id, home.ordinal(), home.context(), handle);
  own_defaults.push_front(timeline);
  return timeline;
}

void timeline_registry::cover_own_defaults() noexcept {
  for (auto* each = own_defaults.first(); each; each = each->links_.next) {
    if (each->lacks_event()) each->record_requested(CU_STREAM_PER_THREAD);
  }
}

bool timeline_registry::is_own_default(stream_timeline const& timeline) noexcept {
  for (auto const* each = own_defaults.first(); each; each = each->links_.next) {
    if (each == &timeline) return true;
  }
  return false;
}

// Records a last event on each default stream of the ending thread, and lets other streams reuse the stream's timeline.
// Such an event still completes after the thread is gone (as seen on an H200).
void timeline_registry::end_thread() noexcept {
  auto list = std::exchange(own_defaults, {});
  if (forked() || !driver_alive()) return;
  auto& registry = instance();
  while (!list.empty()) {
    auto& ended = *list.first();
    list.remove(ended);
    bool const wanted = ended.cover_request().raised();
    ended.record_last_event(CU_STREAM_PER_THREAD, true);
    {
      sync::lock const lock{registry.mutex_};
      registry.store_.retire(ended);
    }
    if (auto* const tell = on_requested_recorded.load(std::memory_order_acquire); wanted && tell) tell();
  }
}

stream_timeline& timeline_registry::take_own(device device, int priority) {
  device.require();
  {
    sync::lock const lock{mutex_};
    auto const found = std::ranges::find_if(idle_, [&](stream_timeline const* each) {
      return each->device() == device.ordinal() && each->priority() == priority && is_free_of_capture(*each);
    });
    if (found != idle_.end()) {
      auto* const timeline = *found;
      *found = idle_.back();
      idle_.pop_back();
      timeline->set_capturing(false); // the earlier owner may have ended its capture by a call of the driver
      return *timeline;
    }
  }
  CUstream handle = nullptr;
  {
    device_guard const scope{device};
    check(driver().stream_create_with_priority(&handle, CU_STREAM_NON_BLOCKING, priority), "cuStreamCreate");
  }
  try {
    auto const id = id_of(handle);
    sync::lock const lock{mutex_};
    idle_.reserve(store_.timelines().size() + 1); // so that return_own() cannot fail
    auto* const before = find(handle);
    auto& timeline = store_.make(stream_kind::own, id, device.ordinal(), device.context(), handle, false);
    timeline.set_priority(priority);
    put(handle, timeline);
    publish_owned(timeline);
    if (before) store_.retire(*before);
    return timeline;
  } catch (...) {
    driver().stream_destroy(handle);
    throw;
  }
}

void timeline_registry::return_own(stream_timeline& timeline) noexcept {
  sync::lock const lock{mutex_};
  idle_.push_back(&timeline);
}

void timeline_registry::adopt(stream_timeline& timeline, bool promised) noexcept {
  sync::lock const lock{mutex_};
  timeline.adopt(promised);
  publish_owned(timeline);
}

void timeline_registry::publish_owned(stream_timeline& timeline) noexcept {
  bool const found_by_handle = timeline.owns_handle() && askers_ == 0;
  owned_handles.put(timeline.handle(), found_by_handle ? &timeline : nullptr);
}

void timeline_registry::change_askers(int change) noexcept {
  if (forked()) return;
  sync::lock const lock{mutex_};
  askers_ += change;
  bool const hidden = askers_ > 0;
  if (owned_handles_hidden.exchange(hidden, std::memory_order_relaxed) == hidden) return;
  for (auto const& each : store_.timelines()) {
    // A handle may have belonged to an earlier stream. So only the timeline that the handle finds now is published.
    if (each->owns_handle() && find(each->handle()) == each.get()) publish_owned(*each);
  }
}

std::size_t timeline_registry::size() const noexcept {
  sync::lock const lock{mutex_};
  return store_.timelines().size();
}

} // namespace gpumem::detail
