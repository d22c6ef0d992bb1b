// stream_cache: finds the largest block, and counts the frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ranges>
module gpumem:stream_cache.impl;
import :stream_cache;
import :block;
import :stream_timeline;

namespace gpumem::detail {

block& stream_cache::pop_largest() noexcept {
  auto const downwards = lists | std::views::reverse;
  return pop(*std::ranges::find_if(downwards, [](block* newest) { return newest != nullptr; }));
}

bool stream_cache::bind_if_empty(stream_timeline& next, std::size_t threshold) noexcept {
  if (count > 0) return false;
  if (unrecorded_frees > 0) flush_counters(*timeline, threshold);
  timeline = &next;
  return true;
}

// Adds this cache's counts to those of the stream: they count the frees after which no event was recorded. If enough
// frees, or `threshold` bytes, are counted, requests an event, which the current free then records.
void stream_cache::flush_counters(stream_timeline& stream, std::size_t threshold) noexcept {
  if (stream.epochs().count_unrecorded(unrecorded_frees, unrecorded_bytes, threshold)) stream.event_request().raise();
  unrecorded_frees = 0;
  unrecorded_bytes = 0;
}

bool stream_cache::event_due_unbound(stream_timeline& stream, std::size_t bytes, std::size_t threshold) noexcept {
  if (threshold != SIZE_MAX && stream.epochs().count_unrecorded(1, bytes, threshold)) stream.event_request().raise();
  return stream.event_request().raised();
}

} // namespace gpumem::detail
