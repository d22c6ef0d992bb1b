// Polls streams until their work is complete.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>
module gpumem:stream_wait.impl;
import :stream_wait;
import :backoff;
import :device;
import :driver;
import :stream_timeline;
import :sync;
import :tuning;

namespace gpumem::detail {
namespace {

// The goal of one stream: the host must see the stream's work complete up to the epoch `newest` (the number of an
// event).
struct goal {
  stream_timeline* timeline;
  epoch newest;
  bool all; // whether `newest` covers all frees on the stream so far
};

goal goal_of(stream_timeline& timeline) noexcept {
  if (!timeline.is_mortal()) return {&timeline, timeline.current_epoch(), true};
  bool const all = !timeline.lacks_event();
  if (!all) timeline.cover_request().raise();
  return {&timeline, timeline.newest_recorded(), all};
}

bool reached(goal const& one) noexcept {
  auto& timeline = *one.timeline;
  if (!timeline.completed(one.newest) && timeline.newest_recorded() < one.newest) timeline.cover(std::nullopt);
  timeline.poll();
  return timeline.completed(one.newest);
}

bool is_lost(goal const& one) {
  auto const ordinal = one.timeline->device();
  return ordinal >= 0 && device{ordinal}.lost();
}

} // namespace

bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept {
  auto const deadline = deadline_after(longest);
  try {
    std::vector<goal> open;
    for (auto* const timeline : timelines) open.push_back(goal_of(*timeline));
    bool const all = std::ranges::all_of(open, &goal::all);
    for (backoff pause{tuning::max_poll_pause};;) {
      std::erase_if(open, reached);
      if (open.empty()) return all;
      if (!driver_alive() || std::ranges::any_of(open, is_lost) || sync::now() >= deadline) return false;
      sync::sleep_for(pause.next());
    }
  } catch (...) { // the host is out of memory
    return false;
  }
}

} // namespace gpumem::detail
