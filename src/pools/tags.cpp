// Joining and pruning the order of memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
module gpumem:tags.impl;
import :tags;
import :timeline;

namespace gpumem::detail {

tag const* tag_set::find(timeline const& order) const noexcept {
  auto const found = std::find_if(begin(), end(), [&](tag const& t) { return t.order == &order; });
  return found == end() ? nullptr : found;
}

bool tag_set::add_to_others(tag const& use) noexcept {
  for (std::size_t i = 0; i < size_; ++i) {
    auto& mine = tags_[i];
    if (mine.order != use.order) continue;
    mine.newest = std::max(mine.newest, use.newest);
    return true;
  }
  if (size_ == most) return false;
  tags_[size_++] = use;
  return true;
}

bool tag_set::join_many(tag_set const& other) noexcept {
  auto joined = *this;
  for (auto const& use : other) {
    if (!joined.add(use)) return false;
  }
  *this = joined;
  return true;
}

void tag_set::remove(timeline const& order) noexcept {
  auto* const last =
      std::remove_if(tags_.data(), tags_.data() + size_, [&](tag const& t) { return t.order == &order; });
  size_ = static_cast<std::size_t>(last - tags_.data());
}

void tag_set::prune() noexcept {
  auto* const last = std::remove_if(tags_.data(), tags_.data() + size_, [](tag const& t) { return t.completed(); });
  size_ = static_cast<std::size_t>(last - tags_.data());
}

bool tag_set::completed() const noexcept {
  return std::all_of(begin(), end(), [](tag const& t) { return t.completed(); });
}

bool tag_set::same_many(tag_set const& other) const noexcept {
  return std::all_of(begin(), end(), [&](tag const& t) { return other.find(*t.order); });
}

} // namespace gpumem::detail
