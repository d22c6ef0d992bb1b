// Splits, frees and coalesces the blocks of a shard, and makes and fills holes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:range_allocator.impl;
import :range_allocator;
import :block;
import :chunk;
import :free_list;
import :stream_uses;
import :tuning;

namespace gpumem::detail {

// always_inline, here and below: on the path of every call that reaches a free range, where instruction count is the
// cost.
[[gnu::always_inline]] void range_allocator::link_below(block& one, block& upper) noexcept {
  one.parent = upper.parent;
  one.lower = upper.lower;
  one.upper = &upper;
  (one.lower ? one.lower->upper : one.parent->first) = &one;
  upper.lower = &one;
}

// Splits the first bytes of a block off as a block of their own.
[[gnu::always_inline]] block& range_allocator::split_front(block& whole, std::size_t bytes) noexcept {
  auto& cut_off = metadata_.allocate();
  cut_off.base = whole.base;
  cut_off.bytes = bytes;
  link_below(cut_off, whole);
  whole.base += bytes;
  whole.bytes -= bytes;
  return cut_off;
}

void range_allocator::link_above(block& one, block& lower) noexcept {
  one.parent = lower.parent;
  one.lower = &lower;
  one.upper = lower.upper;
  (one.upper ? one.upper->lower : one.parent->last) = &one;
  lower.upper = &one;
}

// Removes the record of a block that has become a part of a neighbour.
[[gnu::always_inline]] void range_allocator::erase(block& joined) noexcept {
  (joined.lower ? joined.lower->upper : joined.parent->first) = joined.upper;
  (joined.upper ? joined.upper->lower : joined.parent->last) = joined.lower;
  metadata_.release(joined);
}

void range_allocator::link_pair(block& lower) noexcept {
  lower.pair_prev = nullptr;
  lower.pair_next = pairs_;
  if (pairs_) pairs_->pair_prev = &lower;
  pairs_ = &lower;
}

void range_allocator::unlink_pair(block& lower) noexcept {
  (lower.pair_prev ? lower.pair_prev->pair_next : pairs_) = lower.pair_next;
  if (lower.pair_next) lower.pair_next->pair_prev = lower.pair_prev;
}

// Marks a block as free and puts it on its free list: after `beside`, if that is given.
[[gnu::always_inline]] void range_allocator::insert(block& range, block* beside) noexcept {
  range.set_state(block_state::free);
  if (beside) {
    beside->list->insert_beside(range, *beside);
  } else {
    lists_.of(range.uses).insert(range);
  }
  if (range.upper && range.upper->is_free()) link_pair(range);
  if (range.lower && range.lower->is_free()) link_pair(*range.lower);
}

// Takes a block off its free list.
[[gnu::always_inline]] void range_allocator::extract(block& range) noexcept {
  range.list->remove(range);
  if (is_pair(range)) unlink_pair(range);
  if (range.lower && is_pair(*range.lower)) unlink_pair(*range.lower);
  range.set_state(block_state::allocated);
}

// Joins the upper neighbour to a block that is on no free list. Returns false if both have uses on more than four
// streams.
bool range_allocator::merge_upper(block& range) noexcept {
  auto& upper = *range.upper;
  if (!range.uses.join(upper.uses)) {
    ++refused_coalesces_;
    return false;
  }
  if (upper.is_free()) extract(upper);
  range.bytes += upper.bytes;
  erase(upper);
  ++coalesces_;
  return true;
}

// Joins a block that is on no list to a free neighbour that waits for the same streams. The neighbour keeps its place
// on its list, unless a later epoch moves it.
[[gnu::always_inline]] block& range_allocator::merge_into_lower(block& lower, block& by) noexcept {
  lower.bytes += by.bytes;
  lower.list->grow(lower, by.uses);
  erase(by);
  ++coalesces_;
  if (lower.upper && lower.upper->is_free()) link_pair(lower);
  return lower;
}

[[gnu::always_inline]] block& range_allocator::merge_into_upper(block& upper, block& by) noexcept {
  upper.base = by.base;
  upper.bytes += by.bytes;
  upper.list->grow(upper, by.uses);
  erase(by);
  ++coalesces_;
  if (upper.lower && upper.lower->is_free()) link_pair(*upper.lower);
  return upper;
}

// Coalesces a block that is on no free list with its neighbours, and puts the result on a free list.
[[gnu::always_inline]] block& range_allocator::coalesce(block& freed, coalescing with) noexcept {
  auto* const upper = freed.upper;
  auto* const lower = freed.lower;
  bool const free_above = upper && upper->is_free(), free_below = lower && lower->is_free();
  bool const joins_below = free_below && may_coalesce(*lower, freed, with);
  if (free_above && freed.uses.same_streams(upper->uses)) {
    if (!joins_below) return merge_into_upper(*upper, freed);
    merge_upper(freed);
  } else if (free_above && may_coalesce(freed, *upper, with)) {
    merge_upper(freed);
  }
  // Compares again, since merge_upper() may have added uses to `freed`.
  if (free_below && lower->uses.same_streams(freed.uses)) return merge_into_lower(*lower, freed);
  if (joins_below) {
    extract(*lower);
    bool const joined = merge_upper(*lower);
    insert(*lower, nullptr);
    if (joined) return *lower;
  }
  insert(freed, nullptr);
  return freed;
}

block& range_allocator::free(block& freed, coalescing with) noexcept {
  table_.erase(freed);
  --freed.parent->live_blocks;
  free_bytes_ += freed.bytes;
  return coalesce(freed, with);
}

block& range_allocator::add(chunk& parent, stream_uses const& uses) {
  metadata_.reserve(1);
  lists_.reserve();
  auto& whole = metadata_.allocate();
  whole.base = parent.base;
  whole.bytes = parent.bytes;
  whole.lower = whole.upper = nullptr;
  whole.parent = &parent;
  whole.uses = uses;
  parent.first = parent.last = &whole;
  free_bytes_ += parent.bytes;
  insert(whole, nullptr);
  return whole;
}

block& range_allocator::extend(chunk& parent, std::size_t bytes, stream_uses const& uses) {
  metadata_.reserve(4); // three of them for a hole that the caller may make in it
  lists_.reserve(1);    // one more, because this call may use one before the caller makes a hole
  auto& more = metadata_.allocate();
  more.base = parent.end();
  more.bytes = bytes;
  more.uses = uses;
  link_above(more, *parent.last);
  parent.bytes += bytes;
  free_bytes_ += bytes;
  return coalesce(more, coalescing::same_streams);
}

block& range_allocator::adopt(chunk& parent, range_allocator& from) {
  metadata_.reserve(1);
  lists_.reserve();
  auto const uses = parent.first->uses;
  from.remove(parent);
  return add(parent, uses);
}

void range_allocator::remove(chunk& parent) noexcept {
  for (auto* each = parent.first; each;) {
    auto& gone = *each;
    each = each->upper;
    if (gone.is_free()) {
      free_bytes_ -= gone.bytes;
      extract(gone);
    }
    if (gone.state() == block_state::hole) unlink_hole(gone);
    metadata_.release(gone);
  }
  parent.first = parent.last = nullptr;
}

block* range_allocator::find_containing(chunk const& parent, void const* pointer) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto* each = parent.first; each; each = each->upper) {
    if (address < each->end()) return each;
  }
  return nullptr;
}

// The rest keeps the range's record, and its place on the free list in order of epoch. If bytes are left on both sides,
// the upper rest is put on the list beside it.
[[gnu::always_inline]] block& range_allocator::split(block& range, std::size_t offset, std::size_t bytes) {
  metadata_.reserve(2);
  lists_.reserve();
  auto const left = range.bytes - offset - bytes;
  free_bytes_ -= bytes;
  if (offset == 0 && left == 0) {
    extract(range);
    return range;
  }
  if (offset == 0) {
    if (range.lower && is_pair(*range.lower)) unlink_pair(*range.lower);
    auto& taken = split_front(range, bytes);
    range.list->bins().resized(range);
    return taken;
  }
  auto& taken = metadata_.allocate();
  taken.base = range.base + offset;
  taken.bytes = bytes;
  if (is_pair(range)) unlink_pair(range);
  link_above(taken, range);
  range.bytes = offset;
  range.list->bins().resized(range);
  if (left == 0) return taken;
  auto& rest = metadata_.allocate();
  rest.base = taken.end();
  rest.bytes = left;
  rest.uses = range.uses;
  link_above(rest, taken);
  insert(rest, &range);
  return taken;
}

block& range_allocator::split_off(block& range, std::size_t offset, std::size_t bytes) {
  table_.reserve(1);
  auto& taken = split(range, offset, bytes);
  taken.uses.clear();
  ++taken.parent->live_blocks;
  table_.insert(taken);
  return taken;
}

block& range_allocator::split_run(block& range, std::size_t bytes) {
  auto& others = range.list->quick();
  auto const more = std::min(tuning::min_blocks_for_run / 2 - 1, others.room(bytes));
  table_.reserve(more + 1);
  metadata_.reserve(more + 2);
  auto const uses = range.uses;
  auto& taken = split_off(range, 0, (more + 1) * bytes);
  taken.bytes = bytes;
  for (auto i = more; i > 0; --i) { // from the top down, so that the block beside `taken` is allocated next
    auto& spare = metadata_.allocate();
    spare.base = taken.base + i * bytes;
    spare.bytes = bytes;
    spare.uses = uses;
    link_above(spare, taken);
    table_.insert(spare);
    others.push(spare);
  }
  free_bytes_ += more * bytes;
  return taken;
}

bool range_allocator::flush_quick_lists() noexcept {
  block* all = nullptr;
  lists_.visit([&](free_list& each) { all = each.quick().pop_all(all); });
  bool const any = all;
  while (all) {
    auto& joined = *all;
    all = all->next;
    table_.erase(joined);
    coalesce(joined, coalescing::same_streams);
  }
  return any;
}

block& range_allocator::make_hole(block& last, std::uintptr_t base, std::size_t bytes) {
  metadata_.reserve(3); // each split() reserves two; only the first and the last one use one each
  lists_.reserve();
  auto end = base + bytes;
  for (auto* at = &last;;) {
    auto* const below = at->lower;
    auto const begin = std::max(base, std::uintptr_t{at->base});
    auto& hole = punch_hole(*at, begin - at->base, end - begin);
    if (begin == base) return hole;
    end = begin;
    at = below;
  }
}

void range_allocator::link_hole(block& hole) noexcept {
  hole.set_state(block_state::hole);
  hole.older = nullptr;
  hole.newer = holes_;
  if (holes_) holes_->older = &hole;
  holes_ = &hole;
}

void range_allocator::unlink_hole(block& hole) noexcept {
  (hole.older ? hole.older->newer : holes_) = hole.newer;
  if (hole.newer) hole.newer->older = hole.older;
}

block& range_allocator::punch_hole(block& range, std::size_t offset, std::size_t bytes) {
  auto* hole = &split(range, offset, bytes);
  hole->uses.clear();
  link_hole(*hole);
  if (auto* const upper = hole->upper; upper && upper->state() == block_state::hole) {
    hole->bytes += upper->bytes;
    unlink_hole(*upper);
    erase(*upper);
  }
  if (auto* const lower = hole->lower; lower && lower->state() == block_state::hole) {
    lower->bytes += hole->bytes;
    unlink_hole(*hole);
    erase(*std::exchange(hole, lower));
  }
  return *hole;
}

block& range_allocator::hole_at(std::uintptr_t address) noexcept {
  auto* at = holes_;
  while (address - at->base >= at->bytes) at = at->newer;
  return *at;
}

block& range_allocator::fill_hole(block& hole, std::size_t offset, std::size_t bytes, stream_uses const& uses) {
  metadata_.reserve(2);
  lists_.reserve();
  auto* filled = &hole;
  if (offset + bytes < hole.bytes) {
    filled = &split_front(hole, offset + bytes);
  } else {
    unlink_hole(hole);
  }
  if (offset > 0) link_hole(split_front(*filled, offset));
  filled->uses = uses;
  free_bytes_ += bytes;
  return coalesce(*filled, coalescing::same_streams);
}

void range_allocator::trim_hole(chunk& parent) noexcept {
  auto* const last = parent.last;
  if (!last || last->state() != block_state::hole) return;
  parent.bytes -= last->bytes;
  unlink_hole(*last);
  erase(*last);
}

block& range_allocator::mark_complete(block& range) noexcept {
  extract(range);
  range.uses.clear();
  return coalesce(range, coalescing::same_streams);
}

void range_allocator::prune(block& range) noexcept {
  extract(range);
  range.uses.prune();
  coalesce(range, coalescing::same_streams);
}

bool range_allocator::merge(block& lower) noexcept {
  auto together = lower.uses;
  if (!together.join(lower.upper->uses)) {
    ++refused_coalesces_;
    return false;
  }
  extract(lower);
  merge_upper(lower);
  insert(lower, nullptr);
  return true;
}

std::size_t range_allocator::largest_run(chunk const& parent) noexcept {
  std::size_t largest = 0, run = 0;
  for (auto const* each = parent.first; each; each = each->upper) {
    run = each->is_free() ? run + each->bytes : 0;
    largest = std::max(largest, run);
  }
  return largest;
}

std::size_t range_allocator::largest_free() noexcept {
  std::size_t largest = 0;
  lists_.visit([&](free_list const& each) { largest = std::max(largest, each.bins().largest()); });
  return largest;
}

} // namespace gpumem::detail
