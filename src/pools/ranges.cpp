// Cutting, freeing and joining blocks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>
module gpumem:ranges.impl;
import :ranges;
import :tags;

namespace gpumem::detail {

bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept {
  offset = (alignment - range.base % alignment) % alignment;
  return offset <= range.bytes && bytes <= range.bytes - offset;
}

// A new free block with the chunk and tags of another, in the map and in the index.
block& range_map::insert(block_map::const_iterator hint, block const& like, std::uintptr_t base, std::size_t bytes) {
  auto const at = blocks_.emplace_hint(hint, base, block{});
  auto& made = at->second;
  made.base = base;
  made.bytes = bytes;
  made.home = like.home;
  made.tags = like.tags;
  try {
    index_.insert(&made);
  } catch (...) {
    blocks_.erase(at);
    throw;
  }
  return made;
}

block& range_map::add(chunk& home, tag_set const& tags) {
  block like;
  like.home = &home;
  like.tags = tags;
  auto& made = insert(blocks_.end(), like, home.base, home.bytes);
  free_bytes_ += home.bytes;
  return made;
}

void range_map::remove(chunk const& home) noexcept {
  for (auto at = blocks_.find(home.base); at != blocks_.end() && at->second.home == &home; at = blocks_.erase(at)) {
    free_bytes_ -= at->second.bytes;
    index_.erase(&at->second);
  }
}

block* range_map::covering(void const* pointer) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  auto& found = std::prev(after)->second;
  return address < found.end() ? &found : nullptr;
}

// The index is ordered by size: a block leaves it before its size changes. The address, its key in the map, stays.
void range_map::resize(block& range, std::uintptr_t end) noexcept {
  auto node = index_.extract(&range);
  range.bytes = end - range.base;
  index_.insert(std::move(node));
}

block& range_map::take(block& range, std::size_t offset, std::size_t bytes) {
  auto const base = range.base + offset, end = base + bytes, limit = range.end();
  auto const next = std::next(blocks_.find(range.base));
  auto* const rest = end < limit ? &insert(next, range, end, limit - end) : nullptr;
  auto* taken = &range;
  if (offset > 0) {
    try {
      taken = &insert(next, range, base, bytes);
    } catch (...) {
      if (rest) {
        index_.erase(rest);
        blocks_.erase(rest->base);
      }
      throw;
    }
    resize(range, base);
  }
  taken->spare = index_.extract(taken);
  taken->bytes = bytes;
  taken->live = true;
  taken->tags.clear();
  ++taken->home->live_blocks;
  free_bytes_ -= bytes;
  return *taken;
}

void range_map::release(block& freed) noexcept {
  freed.live = false;
  --freed.home->live_blocks;
  free_bytes_ += freed.bytes;
  index_.insert(std::move(freed.spare));
}

block* range_map::below(block const& range) noexcept {
  auto const at = blocks_.find(range.base);
  if (at == blocks_.begin()) return nullptr;
  auto& found = std::prev(at)->second;
  return found.live || found.home != range.home ? nullptr : &found;
}

block* range_map::above(block const& range) noexcept {
  auto const at = std::next(blocks_.find(range.base));
  if (at == blocks_.end() || at->second.live || at->second.home != range.home) return nullptr;
  return &at->second;
}

bool range_map::join(block& lower, block& upper) noexcept {
  if (!lower.tags.join(upper.tags)) {
    ++refused_joins_;
    return false;
  }
  auto const end = upper.end();
  index_.erase(&upper);
  blocks_.erase(upper.base);
  resize(lower, end);
  return true;
}

std::size_t range_map::largest_run() const noexcept {
  std::size_t largest = 0, run = 0;
  chunk const* home = nullptr;
  for (auto const& [base, each] : blocks_) {
    run = each.live ? 0 : (each.home == home ? run : 0) + each.bytes;
    home = each.home;
    largest = std::max(largest, run);
  }
  return largest;
}

} // namespace gpumem::detail
