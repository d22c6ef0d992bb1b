// Return of memory to the upstream: by trim(), beyond the release threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <cstddef>
#include <new>
#include <vector>
module gpumem:release_task.impl;
import :release_task;
import :chunk_list;
import :deferred_frees;
import :deferred_release;
import :driver;
import :pass_timer;
import :pool_backend;
import :pool_options;
import :pool_parts;
import :progress_monitor;
import :request_passes;
import :reuse_rules;
import :shard_frees;
import :shard_list;
import :stream_timeline;

namespace gpumem::detail {

std::size_t release_task::release(std::size_t keep) {
  deferred_.run(nullptr);
  frees_.flush_thread_caches();
  parts_.rules.poll_young_events(nullptr, parts_.everywhere());
  return parts_.backend.release(keep);
}

// Runs one pass on the library thread (gpumem's background thread). The pass serves the requests that wait. It gives
// memory whose uses are complete back to the upstream: what exceeds the release threshold, or all memory of a closed
// pool. If no event covers the uses of a closed pool's memory, the pass marks their streams, so that a later call on
// each stream records an event. In that case the next pass starts when one of these events was recorded.
void release_task::expire() noexcept {
  requests_.run();
  bool done = false, answered_meanwhile = false;
  {
    all_shards_lock const held{parts_.shards};
    parts_.passes.begin_pass();
    bool const closed = parts_.backend.closed();
    auto const kept = closed || is_beyond_threshold() ? release_pass() : held_by::nothing;
    parts_.passes.end_pass();
    done = parts_.backend.closed() && parts_.chunks.empty();
    bool const looks_on = (is_beyond_threshold() && !parts_.passes.gives_up()) || monitor_.needs_pass();
    bool const more = parts_.backend.closed() ? !done : looks_on;
    bool const now = !process_is_exiting() && (kept != held_by::uses_without_event || !parts_.backend.closed());
    if (more && now) parts_.passes.schedule();
    if (now) monitor_.schedule_stall_check();
    if (more && !now && parts_.backend.closed()) {
      defer_release();
      request_events();
      answered_meanwhile = !process_is_exiting() && reuse_rules::may_complete(parts_.everywhere());
    }
  }
  if (answered_meanwhile) return retry_releases();
  if (done) owner_.destroy();
}

release_task::held_by release_task::release_pass() noexcept {
  try {
    frees_.flush_thread_caches(); // frees fill the caches until the reserved bytes exceed the threshold by an eighth
    parts_.rules.poll_streams(nullptr, parts_.everywhere());
    parts_.backend.release(parts_.backend.closed() ? 0 : parts_.options.release_threshold);
    bool const open = reuse_rules::may_complete(parts_.everywhere());
    parts_.passes.count_idle(open);
    if (open) return held_by::open_events;
    bool const in_use = !reuse_rules::streams_in_use(false, parts_.everywhere()).empty();
    return in_use ? held_by::uses_without_event : held_by::nothing;
  } catch (std::bad_alloc const&) { return held_by::open_events; } // the next pass tries again
}

// Returns the streams that use free memory without an event. Called by request_events() while this thread holds the
// locks of all shards.
std::vector<stream_timeline*> release_task::streams_without_event() {
  assert_all_shards_held();
  return reuse_rules::streams_in_use(true, parts_.everywhere());
}

void release_task::close() noexcept {
  retry_releases();
  bool done = false;
  {
    all_shards_lock const held{parts_.shards};
    parts_.backend.set_closed();
    if (!driver_alive()) return defer_release(); // the driver has shut down: no call of it may be made
    deferred_.run(nullptr);
    if (!parts_.passes.cancel()) return; // a pass runs now, and gives the memory back
    try {
      parts_.rules.poll_streams(nullptr, parts_.everywhere());
    } catch (std::bad_alloc const&) {
      // The host has no memory for the poll. The library thread polls later.
    }
    parts_.backend.release(0);
    done = parts_.chunks.empty();
    parts_.passes.restart_idle();
    if (!done) parts_.passes.schedule();
  }
  if (done) owner_.destroy();
}

} // namespace gpumem::detail
