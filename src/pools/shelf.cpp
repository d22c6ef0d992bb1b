// Putting ranges on shelves, and giving shelves to streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>
module gpumem:shelf.impl;
import :shelf;
import :block;
import :size_bins;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t first_places = 64;

} // namespace

// What comes late comes together, and from near the same time: the search begins where the last one ended.
block* shelf::place_before_newer(block const& range) noexcept {
  auto* at = late_ ? late_ : newest_;
  while (at && epoch_of(*at) > epoch_of(range)) at = at->older;
  for (auto* next = at ? at->newer : oldest_; epoch_of(*next) <= epoch_of(range); next = next->newer) at = next;
  late_ = at ? at : oldest_;
  return at;
}

bool shelf::open(bool without_evidence) const noexcept {
  for (auto const* range = newest_; range; range = range->older) {
    for (auto const& use : range->tags) {
      if (!use.completed() && !(without_evidence && use.has_evidence())) return true;
    }
    if (order_) return false; // what is older is complete too, or covered
  }
  return false;
}

shelves::shelves() : by_stream_(first_places), mask_{first_places - 1} {}

shelf& shelves::give_to(timeline& order) noexcept {
  if (spare_.empty()) return mixed_;
  auto& made = *spare_.back();
  spare_.pop_back();
  made.order_ = &order;
  own_.push_back(&made); // there is room
  index(made);
  return made;
}

void shelves::index(shelf& one) noexcept {
  auto i = one.order_->index() & mask_;
  while (by_stream_[i]) i = (i + 1) & mask_;
  by_stream_[i] = &one;
}

// Streams come and go: shelves that stand empty serve the next, once there are many.
void shelves::refill(std::size_t spares) {
  constexpr std::size_t many = 64;
  if (own_.size() >= many) reclaim();
  while (spare_.size() < spares) {
    auto const most = all_.size() + 1;
    all_.reserve(most);
    own_.reserve(most);
    spare_.reserve(most);
    if (2 * most > by_stream_.size()) {
      std::vector<shelf*> larger(2 * by_stream_.size());
      by_stream_.swap(larger);
      mask_ = by_stream_.size() - 1;
      for (auto* const each : own_) index(*each);
    }
    all_.push_back(std::make_unique<shelf>());
    spare_.push_back(all_.back().get());
  }
}

void shelves::reclaim() noexcept {
  auto const kept = std::partition(own_.begin(), own_.end(), [](shelf const* each) { return !each->unused(); });
  spare_.insert(spare_.end(), kept, own_.end()); // there is room for all
  own_.erase(kept, own_.end());
  std::ranges::fill(by_stream_, nullptr);
  for (auto* const each : own_) index(*each);
  for (auto* const each : spare_) {
    each->order_ = nullptr;
    each->unrecorded_frees = 0;
    each->unrecorded_bytes = 0;
  }
}

} // namespace gpumem::detail
