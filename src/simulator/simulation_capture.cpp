// simulation: finds the stream captures that a call invalidates, and adds work to captures.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "simulation.hpp"

namespace simulated {

bool simulation::forbidden_by_capture() {
  const host_thread& self = this_host_thread();
  if (self.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool found = false;
  for (const auto& open : captures) {
    const bool own = open->begun_by == self.number && open->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global =
        open->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    invalidate(*open);
    found = true;
  }
  return found;
}

// As driver 580 does, invalidates the captures whatever their capture mode and that of the thread.
bool simulation::breaks_captures_of(const context& home) {
  bool found = false;
  for (const auto& open : captures) {
    const bool here = std::any_of(open->members.begin(), open->members.end(),
                                  [&](const auto& member) { return member.on->home == &home; });
    if (!here) continue;
    invalidate(*open);
    found = true;
  }
  return found;
}

CUresult simulation::add_to_capture(const stream_ptr& on, operation&& work) {
  capture& open = *on->capturing;
  if (open.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (const auto found = open.clash_of(on, work)) {
    const party later{on->id, open.enter(on).nodes + 1, work.action};
    const block_name bytes{0, found->bytes.address, found->bytes.bytes};
    findings.add({finding_kind::unordered_access, found->earlier, later, bytes,
                  "stream " + std::to_string(on->id) + " is not ordered after " + describe(found->earlier),
                  "unordered access in a captured graph to " + describe(bytes) + ": " + describe(later) +
                      " is not ordered after " + describe(found->earlier)});
  }
  open.add(on, std::move(work), nodes);
  return CUDA_SUCCESS;
}

void simulation::forget_nodes(const graph& gone) {
  for (const CUgraphNode each : gone.handles) nodes.erase(each);
}

bool simulation::legacy_breaks_capture(const stream& on) {
  if (on.kind != stream_kind::legacy) return false;
  bool found = false;
  for (const auto& open : captures)
    for (const auto& member : open->members) {
      if (member.on->home != on.home || !member.on->blocking()) continue;
      invalidate(*open);
      found = true;
    }
  return found;
}

bool simulation::legacy_meets_capture(const stream& on) const {
  if (on.kind != stream_kind::legacy) return false;
  return std::any_of(captures.begin(), captures.end(), [&](const auto& open) {
    return std::any_of(open->members.begin(), open->members.end(),
                       [&](const auto& member) { return member.on->home == on.home && member.on->blocking(); });
  });
}

} // namespace simulated
