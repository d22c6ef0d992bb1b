// Makes timelines, and reuses those of dead streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>
module gpumem:timeline_store.impl;
import :timeline_store;
import :cuda;
import :pooled_event;
import :stream_identity;
import :stream_timeline;

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
  auto* found = take_dead(context);
  if (!found) {
    try {
      auto& made = make(kind, id, device, context, handle, true);
      make_spares(device, context);
      return made;
    } catch (...) {
      found = take_spare(context);
      if (!found) throw;
    }
  }
  found->rebind(kind, id, handle);
  return *found;
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

} // namespace gpumem::detail
