// Counts frees that no event covers yet, and records events.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <utility>
module gpumem:free_events.impl;
import :free_events;
import :block;
import :free_lists;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

// Counts a free. Returns whether the frees of the stream that no event covers have reached the threshold for an event.
// Counts first in the stream's free list of the shard `in`. Adds the sums to the counter of the whole stream later, so
// that threads that use the same stream rarely write that shared counter.
bool free_events::passes_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& in) noexcept {
  auto const threshold = parts_.mode.event_threshold_bytes();
  auto* const own = in.ranges.lists().find(timeline);
  if (!own) [[unlikely]]
    return timeline.epochs().count_unrecorded(1, bytes, threshold);
  if (!own->count_free(bytes, threshold)) [[likely]]
    return false;
  auto const frees = std::exchange(own->unrecorded_frees, 0);
  return timeline.epochs().count_unrecorded(frees, std::exchange(own->unrecorded_bytes, 0), threshold);
}

stream_use free_events::record(stream_key const& key, stream_use const& use) noexcept {
  bool const shared = parts_.options.cross_stream != reuse_policy::ordered;
  if (key.has_handle() && shared && !parts_.backend.lost()) {
    if (auto const recorded = use.timeline->record_at_free(key.handle())) return {use.timeline, recorded};
  }
  return use;
}

} // namespace gpumem::detail
