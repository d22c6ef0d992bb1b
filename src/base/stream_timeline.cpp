// Records and polls events of streams, and makes streams wait for events of other streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
module gpumem:stream_timeline.impl;
import :stream_timeline;
import :backoff;
import :cuda;
import :device;
import :driver;
import :event_ring;
import :pooled_event;
import :stream_epochs;
import :stream_identity;
import :sync;
import :tuning;

namespace gpumem::detail {

stream_timeline::stream_timeline(stream_kind kind, std::uint32_t index, std::uint64_t id, int device, CUcontext context,
                                 CUstream handle, pooled_event* last)
    : stream_identity{kind, index, id, device, context, handle}, prepared_{kind == stream_kind::host},
      may_die_{last != nullptr}, epochs_{kind == stream_kind::host ? ~epoch{0} : 0}, ring_{*this, epochs_},
      last_{*this, epochs_, last} {}

void stream_timeline::adopt(bool promised) noexcept {
  if (kind() == stream_kind::own) return;
  sync::lock const held{events_mutex_}; // so no thread uses the handle in record() while the promise ends
  change_promises(promised);
}

bool stream_timeline::ordered_after(stream_timeline const& other, epoch e) const {
  return this == &other || order_.is_after(other.index(), e);
}

epoch stream_timeline::record(CUstream handle, bool precise, bool promised) noexcept {
  if (kind() == stream_kind::host || !is_usable()) return 0;
  relaxed_capture const relaxed;
  sync::lock const held{events_mutex_};
  if (promised && !owns_handle()) return 0;
  auto const covers = ring_.record(handle, precise, event_request_, last_.open_epoch());
  if (!ring_.has_spare()) prepared_.store(false, std::memory_order_relaxed);
  return covers;
}

bool stream_timeline::waitable(epoch e) const noexcept {
  sync::lock const held{events_mutex_};
  return ring_.find_waitable(e) != nullptr;
}

bool stream_timeline::has_event() const noexcept {
  sync::lock const held{events_mutex_};
  return ring_.open_since() || last_.open_since();
}

std::optional<sync::time_point> stream_timeline::poll() noexcept {
  if (!is_usable()) return std::nullopt;
  if (!events_mutex_.try_lock()) return std::nullopt;
  sync::lock const held{events_mutex_, std::adopt_lock};
  auto const before = ring_.open_since();
  if ((!before && !last_.open_since()) || was_reset()) return std::nullopt;
  relaxed_capture const relaxed;
  // A recent event says nothing about the stream's work: even a stream without work takes 2 us to complete one.
  auto const long_ago = sync::now() - tuning::behind_after;
  bool const tells = before && *before < long_ago;
  ring_.retire_completed(last_.open_epoch());
  last_.poll(ring_.newest());
  auto const in_ring = ring_.open_since();
  auto const since = in_ring ? in_ring : last_.open_since();
  if (tells || !since) behind_.store(in_ring && *in_ring < long_ago, std::memory_order_relaxed);
  return since;
}

// Returns false if the waiting stream is known only by handle 0 (kind null): the driver would make the legacy stream
// wait, which is a barrier between all blocking streams.
bool stream_timeline::insert_wait(stream_timeline& waiting, CUstream caller_handle, epoch e) noexcept {
  if (waiting.kind() == stream_kind::null || !is_usable() || !waiting.is_usable()) return false;
  {
    sync::lock const held{events_mutex_};
    auto* const event = ring_.find_waitable(e);
    if (!event) return false;
    relaxed_capture const relaxed;
    if (waiting.captures(caller_handle)) return false; // the wait would end a capture that was begun on the handle
    if (driver().stream_wait_event(caller_handle, event, 0) != CUDA_SUCCESS) return false;
  }
  try {
    waiting.order_.add(index(), e, {});
  } catch (...) {
    return false; // the driver has the wait; only the note of the order is lost
  }
  return true;
}

bool stream_timeline::wait(epoch e) noexcept {
  for (backoff pause{tuning::max_pass_pause};;) {
    if (newest_recorded() < e) cover(std::nullopt);
    poll();
    if (completed(e)) return true;
    if (!is_usable() || !can_complete(e)) return false;
    sync::sleep_for(pause.next());
  }
}

} // namespace gpumem::detail
