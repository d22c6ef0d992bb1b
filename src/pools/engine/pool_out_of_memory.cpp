// Out of memory: the host waits, for a bounded time, until streams complete their uses of free memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:pool_out_of_memory.impl;
import :allocation_request;
import :chunk;
import :cuda;
import :device;
import :driver;
import :pool_backend;
import :pool_engine;
import :pool_options;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :stream_uses;
import :sync;
import :timeline_registry;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;
inline constexpr sync::duration max_sync_time = 1s;
inline constexpr sync::duration max_sleep = 5ms;

// The work of one stream that the host must see complete.
struct goal {
  stream_timeline* timeline;
  epoch newest;
  bool all; // events can cover all frees on the stream up to now
};

goal goal_of(stream_timeline& timeline) noexcept {
  if (!timeline.is_mortal()) return {&timeline, timeline.current_epoch(), true};
  bool const all = timeline.uncovered_frees() == 0;
  if (!all) timeline.request_cover();
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
  auto const deadline = sync::now() + longest;
  try {
    std::vector<goal> open;
    for (auto* const timeline : timelines) open.push_back(goal_of(*timeline));
    bool const all = std::ranges::all_of(open, &goal::all);
    for (sync::duration sleep = 20us;; sleep = std::min(2 * sleep, max_sleep)) {
      std::erase_if(open, reached);
      if (open.empty()) return all;
      if (!driver_alive() || std::ranges::any_of(open, is_lost) || sync::now() >= deadline) return false;
      sync::sleep_for(sleep);
    }
  } catch (...) { // the host is out of memory
    return false;
  }
}

bool pool_engine::synchronize(sync::duration longest) {
  timeline_registry::cover_own_defaults();
  std::vector<stream_timeline*> open;
  {
    all_shards_lock const held{parts_.shards};
    run_deferred_frees();
    flush_thread_caches();
    open = reuse_rules::streams_in_use(false, parts_.everywhere());
  }
  return wait_for_streams(open, longest) && !lost();
}

// Returns whether the request could succeed once open work is complete: from free memory, or by growth in its place.
bool pool_engine::sync_could_help(allocation_request const& request) {
  if (!reuse_rules::may_complete(parts_.everywhere())) return false;
  if (parts_.backend.paged() && parts_.free_bytes() + parts_.backend.chunks().headroom() >= request.bytes) return true;
  std::size_t run = 0;
  parts_.backend.chunks().visit([&](chunk const& each) { run = std::max(run, range_allocator::largest_run(each)); });
  if (run >= request.bytes && (parts_.options.cross_stream != reuse_policy::ordered || request.key.is_host()))
    return true;
  return parts_.backend.chunks().largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls for up to `max_sync_time`, and searches after each poll. Returns null if the request fails; the caller then
// gives back chunks that have become idle.
void* pool_engine::sync_and_retry(allocation_request const& request, all_shards_lock& held) {
  auto const deadline = sync::now() + max_sync_time;
  parts_.rules.poll_streams(nullptr, parts_.everywhere());
  for (sync::duration sleep = 20us; sync_could_help(request); sleep = std::min(2 * sleep, max_sleep)) {
    if (lost() || sync::now() >= deadline) return nullptr;
    held.unlock();
    sync::sleep_for(sleep);
    held.lock();
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
    if (auto* const p = search_after_sync(request)) return p;
  }
  return search_after_sync(request);
}

void* pool_engine::search_after_sync(allocation_request const& request) {
  auto* const p = search_all_shards(request);
  if (p) ++request.shard->counts.reuse_after_sync;
  return p;
}

} // namespace gpumem::detail
