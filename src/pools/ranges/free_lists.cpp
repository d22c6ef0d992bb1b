// Searches and orders free ranges by size and epoch, and assigns free lists to streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>
module gpumem:free_lists.impl;
import :free_lists;
import :block;
import :stream_timeline;

namespace gpumem::detail {

// Returns the smallest block of a bin that is large enough, the lowest of equal ones; null if there is none.
block* size_bins::find_in(block* head, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept {
  block* best = nullptr;
  for (auto* each = head; each != &end_; each = each->next) {
    std::size_t where = 0;
    if (best && (each->bytes > best->bytes || (each->bytes == best->bytes && each->base > best->base))) continue;
    if (!fits(*each, bytes, alignment, where)) continue;
    best = each;
    offset = where;
  }
  return best;
}

block* size_bins::search(unsigned first, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept {
  // Looks only at the head of each bin: each further block costs a cache line, and is rarely a better fit.
  for (auto bin = first; bin < bin_count; bin = next_used(bin + 1)) {
    if (fits(*heads_[bin], bytes, alignment, offset)) [[likely]]
      return heads_[bin];
  }
  // No head has room for the bytes with this alignment, so this looks at all blocks.
  for (auto bin = first; bin < bin_count; bin = next_used(bin + 1)) {
    if (auto* const found = find_in(heads_[bin], bytes, alignment, offset)) return found;
  }
  return nullptr;
}

std::size_t size_bins::largest() const noexcept {
  if (empty()) return 0;
  auto const word = word_bits - 1 - static_cast<unsigned>(std::countl_zero(used_words_ ^ sentinel));
  auto const bin = word * word_bits + word_bits - 1 - static_cast<unsigned>(std::countl_zero(used_bins_[word]));
  std::size_t largest = 0;
  for (auto const* each = heads_[bin]; each != &end_; each = each->next) largest = std::max(largest, each->bytes);
  return largest;
}

block* quick_lists::pop_all(block* chain) noexcept {
  if (empty()) return chain;
  for (auto*& head : heads_) {
    while (auto* const listed = head) {
      pop(*listed);
      listed->next = chain;
      chain = listed;
    }
  }
  return chain;
}

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

void free_lists::index(free_list& list) noexcept {
  auto i = list.timeline_->index() & mask_;
  while (by_stream_[i]) i = (i + 1) & mask_;
  by_stream_[i] = &list;
}

std::size_t free_lists::largest() noexcept {
  std::size_t largest = 0;
  visit([&](free_list const& each) { largest = std::max(largest, each.bins().largest()); });
  return largest;
}

// Makes spare free lists. If 64 streams or more have a list, first takes back the empty ones: many of these streams may
// have ended.
void free_lists::refill(std::size_t spares) {
  constexpr std::size_t min_lists = 64;
  if (single_stream_.size() >= min_lists) reclaim();
  while (spare_.size() < spares) {
    auto const capacity = lists_.size() + 1;
    lists_.reserve(capacity);
    single_stream_.reserve(capacity);
    spare_.reserve(capacity);
    if (2 * capacity > by_stream_.size()) {
      std::vector<free_list*> larger(2 * by_stream_.size());
      by_stream_.swap(larger);
      mask_ = by_stream_.size() - 1;
      for (auto* const each : single_stream_) index(*each);
    }
    lists_.push_back(std::make_unique<free_list>());
    spare_.push_back(lists_.back().get());
  }
}

void free_lists::reclaim() noexcept {
  auto const kept_end = std::partition(single_stream_.begin(), single_stream_.end(),
                                       [](free_list const* each) { return !each->unused(); });
  spare_.insert(spare_.end(), kept_end, single_stream_.end()); // refill() has reserved room for all
  single_stream_.erase(kept_end, single_stream_.end());
  std::ranges::fill(by_stream_, nullptr);
  for (auto* const each : single_stream_) index(*each);
  for (auto* const each : spare_) {
    each->timeline_ = nullptr;
    each->unrecorded_frees = 0;
    each->unrecorded_bytes = 0;
  }
}

} // namespace gpumem::detail
