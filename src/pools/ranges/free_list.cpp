// Keeps the ranges of a free list in order of the epochs of their uses.
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

// Returns the range after which `range` belongs by its epoch; null if `range` is the oldest. The newest range is
// inserted without this search. Other ranges come in runs of similar epochs, so the search begins where the last search
// ended.
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
    if (timeline_) return false; // older uses of this one stream are complete, or have an event too
  }
  return false;
}

} // namespace gpumem::detail
