// Adds, joins and drops uses of memory, and searches the blocks of a chunk.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
module gpumem:block.impl;
import :block;
import :hash;
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
  if (root) {
    for (auto* each = root; each; each = each->tree_children[address >= each->base]) {
      if (address - each->base < each->bytes) return each;
    }
    return nullptr;
  }
  for (auto* each = first; each; each = each->upper) {
    if (address < each->end()) return each;
  }
  return nullptr;
}

namespace {

// The tree is a treap (Aragon, Seidel 1989). The addresses of the blocks sort it, and a parent has a higher priority
// than its children. The priorities are as good as random, so the depth is about twice the binary logarithm.
std::uint64_t priority_of(block const& node) noexcept {
  auto const spread = fibonacci_hash(reinterpret_cast<std::uintptr_t>(&node));
  return fibonacci_hash(spread ^ spread >> 32);
}

} // namespace

block*& chunk::link_to(block const& node) noexcept {
  auto* const parent = node.tree_parent;
  return parent ? parent->tree_children[parent->tree_children[1] == &node] : root;
}

// Makes a node the parent of its parent.
void chunk::rotate_up(block& node) noexcept {
  auto& parent = *node.tree_parent;
  bool const above = parent.tree_children[1] == &node;
  link_to(parent) = &node;
  node.tree_parent = parent.tree_parent;
  auto*& inner = node.tree_children[!above];
  parent.tree_children[above] = inner;
  if (inner) inner->tree_parent = &parent;
  inner = &parent;
  parent.tree_parent = &node;
}

// One of the two neighbours has no child on the side of the block.
void chunk::add_to_tree(block& added) noexcept {
  bool const above = added.lower && !added.lower->tree_children[1];
  auto& neighbour = above ? *added.lower : *added.upper;
  neighbour.tree_children[above] = &added;
  added.tree_parent = &neighbour;
  added.tree_children = {};
  auto const priority = priority_of(added);
  while (added.tree_parent && priority_of(*added.tree_parent) < priority) rotate_up(added);
}

void chunk::remove_from_tree(block& joined) noexcept {
  for (auto const& [lower, upper] = joined.tree_children; lower || upper;)
    rotate_up(!upper || (lower && priority_of(*lower) > priority_of(*upper)) ? *lower : *upper);
  link_to(joined) = nullptr;
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
