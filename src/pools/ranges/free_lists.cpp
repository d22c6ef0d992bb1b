// Assigns free lists to streams, and finds them by stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>
module gpumem:free_lists.impl;
import :free_lists;
import :free_list;
import :size_bins;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

namespace {

inline constexpr std::size_t first_slots = 64;

} // namespace

free_lists::free_lists() : by_stream_(first_slots), mask_{first_slots - 1} {}

free_list& free_lists::assign_to(stream_timeline& timeline) noexcept {
  if (spare_.empty()) return multi_stream_;
  auto& made = *spare_.back();
  spare_.pop_back();
  made.timeline_ = &timeline;
  single_stream_.push_back(&made); // refill() has reserved room
  index(made);
  return made;
}

void free_lists::index(free_list& one) noexcept {
  auto i = one.timeline_->index() & mask_;
  while (by_stream_[i]) i = (i + 1) & mask_;
  by_stream_[i] = &one;
}

std::size_t free_lists::largest() noexcept {
  std::size_t largest = 0;
  visit([&](free_list const& each) { largest = std::max(largest, each.bins().largest()); });
  return largest;
}

// Makes spare free lists. If 64 streams or more have a list, first takes back the empty ones: many of these streams may
// have ended.
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
  spare_.insert(spare_.end(), kept, single_stream_.end()); // refill() has reserved room for all
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
