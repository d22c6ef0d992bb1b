// Adds, joins and drops uses of memory, and searches the blocks of a chunk.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module gpumem:block.impl;
import :block;
import :stream_timeline;

namespace gpumem::detail {

stream_use const* stream_uses::find(stream_timeline const& timeline) const noexcept {
  auto const found = std::find_if(begin(), end(), [&](stream_use const& t) { return t.timeline == &timeline; });
  return found == end() ? nullptr : found;
}

bool stream_uses::add_to_others(stream_use const& use) noexcept {
  for (std::size_t i = 0; i < size_; ++i) {
    auto& mine = uses_[i];
    if (mine.timeline != use.timeline) continue;
    mine.newest = std::max(mine.newest, use.newest);
    return true;
  }
  if (size_ == max_streams) return false;
  uses_[size_++] = use;
  return true;
}

bool stream_uses::join_many(stream_uses const& other) noexcept {
  auto joined = *this;
  for (auto const& use : other) {
    if (!joined.add(use)) return false;
  }
  *this = joined;
  return true;
}

void stream_uses::remove(stream_timeline const& timeline) noexcept {
  auto* const last =
      std::remove_if(uses_.data(), uses_.data() + size_, [&](stream_use const& t) { return t.timeline == &timeline; });
  size_ = static_cast<std::size_t>(last - uses_.data());
}

void stream_uses::prune() noexcept {
  auto* const last =
      std::remove_if(uses_.data(), uses_.data() + size_, [](stream_use const& t) { return t.completed(); });
  size_ = static_cast<std::size_t>(last - uses_.data());
}

bool stream_uses::completed() const noexcept {
  return std::all_of(begin(), end(), [](stream_use const& t) { return t.completed(); });
}

bool stream_uses::same_many(stream_uses const& other) const noexcept {
  return std::all_of(begin(), end(), [&](stream_use const& t) { return other.find(*t.timeline); });
}

block* chunk::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto* each = first; each; each = each->upper) {
    if (address < each->end()) return each;
  }
  return nullptr;
}

std::size_t chunk::largest_run() const noexcept {
  std::size_t largest = 0, run = 0;
  visit([&](block const& each) {
    run = each.is_free() ? run + each.bytes : 0;
    largest = std::max(largest, run);
  });
  return largest;
}

} // namespace gpumem::detail
