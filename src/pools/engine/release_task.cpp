// Return of memory to the upstream: by trim(), beyond the release threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>
module gpumem:release_task.impl;
import :release_task;
import :backend_parts;
import :chunk_list;
import :deferred_release;
import :driver;
import :frees;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_upstream;
import :request_queue;
import :reuse_rules;
import :shard_list;
import :stream_timeline;

namespace gpumem::detail {

std::size_t release_task::release(std::size_t keep) {
  frees_.run_deferred(nullptr);
  frees_.flush_thread_caches();
  parts_.rules.poll_young_events(nullptr, parts_.shards.everywhere());
  return parts_.backend->release(keep);
}

// Runs one pass on the library thread. The pass serves the requests that wait. It gives memory whose uses are complete
// back to the upstream: what exceeds the release threshold, or all memory of a closed pool.
void release_task::expire() noexcept {
  requests_.run();
  auto step = next_step::nothing;
  {
    all_shards_lock const lock{parts_.shards};
    parts_.passes.begin_pass();
    bool const closed = parts_.backend->closed();
    bool const wanted = parts_.backend->wants_release();
    // A pass may have another reason, while the excess is so small that no free has started a release.
    bool const releases = closed || wanted || (is_beyond_threshold() && !parts_.passes.gives_up());
    auto const kept = releases ? release_pass(wanted) : held_by::nothing;
    if (!closed && !process_is_exiting())
      parts_.backend->look(parts_.shards.locked_calls() + parts_.caches.snapshot().allocations);
    if (wanted) parts_.passes.notify(); // requests wait for the memory that has gone back
    parts_.passes.end_pass();
    bool const looks_on = (is_beyond_threshold() && !parts_.passes.gives_up()) || monitor_.needs_pass();
    if (parts_.backend->closed()) {
      step = after_closed_pass(closed ? kept : held_by::open_events); // if it was closed meanwhile, a pass must follow
    } else if (!process_is_exiting()) {
      if (looks_on) parts_.passes.schedule();
      if (auto const when = parts_.backend->next_look()) parts_.passes.schedule_at(*when);
      monitor_.schedule_stall_check();
    }
  }
  take(step);
}

// If no event covers uses of the memory that is left, marks their streams, so that a later call on each stream records
// an event. If polls can show nothing more, the next pass starts when one of these events was recorded.
release_task::next_step release_task::after_closed_pass(held_by keeper) noexcept {
  if (parts_.chunks.empty()) return next_step::end;
  list_closed(parts_.where ? parts_.where->ordinal() : -1);
  bool const waits = process_is_exiting() || keeper == held_by::uses_without_event;
  if (waits) defer_release();
  request_events(kept_bytes());
  if (!waits) parts_.passes.schedule();
  bool const answered_meanwhile =
      waits && !process_is_exiting() && reuse_rules::may_complete(parts_.shards.everywhere());
  return answered_meanwhile ? next_step::retry : next_step::nothing;
}

void release_task::take(next_step step) noexcept {
  if (step == next_step::retry) return retry_releases();
  if (step != next_step::end) return;
  unlist_closed();
  owner_.destroy();
}

// Returns the bytes that the pool keeps from the device. A chunk of a stream-ordered upstream can keep a whole step of
// a driver's pool (cuMemPoolCreate), which is also the least memory that such a pool has: 32 MiB on an H200.
std::size_t release_task::kept_bytes() const noexcept {
  constexpr std::size_t driver_pool_step = std::size_t{32} << 20;
  auto const reserved = parts_.chunks.reserved();
  return parts_.upstream->stream_ordered() ? std::max(reserved, driver_pool_step) : reserved;
}

release_task::held_by release_task::release_pass(bool release_all) noexcept {
  parts_.backend->begin_wanted_release();
  try {
    frees_.flush_thread_caches(); // frees fill the caches until the reserved bytes exceed the threshold by an eighth
    parts_.rules.poll_streams(nullptr, parts_.shards.everywhere());
    parts_.backend->release(release_all || parts_.backend->closed() ? 0 : parts_.options.release_threshold);
    bool const open = reuse_rules::may_complete(parts_.shards.everywhere());
    parts_.passes.count_idle(open && is_beyond_threshold());
    if (open) return held_by::open_events;
    bool const in_use = !reuse_rules::streams_in_use(false, parts_.shards.everywhere()).empty();
    return in_use ? held_by::uses_without_event : held_by::nothing;
  } catch (std::bad_alloc const&) { return held_by::open_events; } // the next pass tries again
}

// Returns the streams that use free memory without an event. Called by request_events() while this thread holds the
// locks of all shards.
std::vector<stream_timeline*> release_task::streams_without_event() {
  assert_all_shards_held();
  return reuse_rules::streams_in_use(true, parts_.shards.everywhere());
}

// Called by a thread whose request found no memory. The library thread may make a pass at the same time.
release_task::given_back release_task::give_back() noexcept {
  if (upstream_call::runs_here(parts_.shards)) return given_back::nothing; // this thread gives memory back already
  all_shards_lock const lock{parts_.shards};
  auto const before = parts_.chunks.reserved();
  if (parts_.chunks.releasing() > 0) return given_back::by_other_thread;
  release_pass(true);
  return parts_.chunks.reserved() < before ? given_back::memory : given_back::nothing;
}

void release_task::close() noexcept {
  retry_releases();
  auto step = next_step::nothing;
  {
    all_shards_lock const lock{parts_.shards};
    parts_.backend->set_closed();
    if (!driver_alive()) return defer_release(); // the driver has shut down: no call of it may be made
    frees_.run_deferred(nullptr);
    if (!parts_.passes.cancel()) return; // a pass runs now, and gives the memory back
    parts_.passes.restart_idle();
    step = after_closed_pass(release_pass(true));
  }
  take(step);
}

} // namespace gpumem::detail
