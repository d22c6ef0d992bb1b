// Keeps the ranges of a free list in order of their epochs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>
module gpumem:free_list.impl;
import :free_list;
import :block;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

// Returns the range after which this one belongs by its epoch; null if it is the oldest. Ranges that are not inserted
// as the newest come in runs of similar epochs. So the search begins where the last one ended.
block* free_list::insertion_point(block const& range) noexcept {
  auto* at = late_ ? late_ : newest_;
  while (at && epoch_of(*at) > epoch_of(range)) at = at->older;
  for (auto* next = at ? at->newer : oldest_; epoch_of(*next) <= epoch_of(range); next = next->newer) at = next;
  late_ = at ? at : oldest_;
  return at;
}

bool free_list::in_use(bool without_event) const noexcept {
  for (auto const* range = newest_; range; range = range->older) {
    for (auto const& use : range->uses) {
      if (!use.completed() && !(without_event && use.has_event())) return true;
    }
    if (timeline_) return false; // the older uses, of the same stream, are complete or have an event too
  }
  return false;
}

} // namespace gpumem::detail
