// Putting ranges on free lists, and giving free lists to streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>
module gpumem:free_list.impl;
import :free_list;
import :block;
import :size_bins;
import :stream_uses;
import :stream_timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t first_slots = 64;

} // namespace

// What comes late comes together, and from near the same time: the search begins where the last one ended.
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
    if (timeline_) return false; // what is older is complete too, or covered
  }
  return false;
}

free_lists::free_lists() : by_stream_(first_slots), mask_{first_slots - 1} {}

free_list& free_lists::assign_to(stream_timeline& timeline) noexcept {
  if (spare_.empty()) return multi_stream_;
  auto& made = *spare_.back();
  spare_.pop_back();
  made.timeline_ = &timeline;
  single_stream_.push_back(&made); // there is room
  index(made);
  return made;
}

void free_lists::index(free_list& one) noexcept {
  auto i = one.timeline_->index() & mask_;
  while (by_stream_[i]) i = (i + 1) & mask_;
  by_stream_[i] = &one;
}

// Streams come and go: free lists that stand empty serve the next, once there are many.
void free_lists::refill(std::size_t spares) {
  constexpr std::size_t many = 64;
  if (single_stream_.size() >= many) reclaim();
  while (spare_.size() < spares) {
    auto const capacity = all_.size() + 1;
    all_.reserve(capacity);
    single_stream_.reserve(capacity);
    spare_.reserve(capacity);
    if (2 * capacity > by_stream_.size()) {
      std::vector<free_list*> larger(2 * by_stream_.size());
      by_stream_.swap(larger);
      mask_ = by_stream_.size() - 1;
      for (auto* const each : single_stream_) index(*each);
    }
    all_.push_back(std::make_unique<free_list>());
    spare_.push_back(all_.back().get());
  }
}

void free_lists::reclaim() noexcept {
  auto const kept = std::partition(single_stream_.begin(), single_stream_.end(),
                                   [](free_list const* each) { return !each->unused(); });
  spare_.insert(spare_.end(), kept, single_stream_.end()); // there is room for all
  single_stream_.erase(kept, single_stream_.end());
  std::ranges::fill(by_stream_, nullptr);
  for (auto* const each : single_stream_) index(*each);
  for (auto* const each : spare_) {
    each->timeline_ = nullptr;
    each->unrecorded_frees = 0;
    each->unrecorded_bytes = 0;
  }
}

} // namespace gpumem::detail
