// Splits, frees and coalesces the blocks of a shard, and makes and fills holes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:range_allocator.impl;
import :range_allocator;
import :block;
import :block_table;
import :free_lists;

namespace gpumem::detail {
namespace {

inline bool may_coalesce(block const& lower, block const& other, free_range_set::coalescing mode) noexcept {
  if (mode == free_range_set::coalescing::any || lower.uses.same_streams(other.uses)) return true;
  if (mode <= free_range_set::coalescing::same_streams) return false;
  auto const& unused = lower.uses.empty() ? lower : other;
  auto const& used = lower.uses.empty() ? other : lower;
  return unused.uses.empty() && unused.bytes / tuning::max_join_factor <= used.bytes;
}

} // namespace

// Joins the upper neighbour to a block that is on no free list. Returns false, and changes nothing, if the two have
// uses on more than four streams together.
bool free_range_set::merge_upper(block& range) noexcept {
  auto& upper = *range.upper;
  if (!range.uses.join(upper.uses)) {
    ++refused_coalesces_;
    return false;
  }
  if (upper.is_free()) extract(upper);
  range.bytes += upper.bytes;
  records_.deallocate(range.parent->unlink(upper));
  ++coalesces_;
  return true;
}

// Joins a block that is on no list to a free neighbour that the same streams used. The neighbour stays on its free
// list. Its place in the list changes only if the block was used later. Force-inlined, since each free that no thread
// cache takes runs this code.
[[gnu::always_inline]] block& free_range_set::merge_into_lower(block& lower, block& addition) noexcept {
  lower.bytes += addition.bytes;
  lower.list->grow(lower, addition.uses);
  records_.deallocate(lower.parent->unlink(addition));
  ++coalesces_;
  pairs_.add_with_upper(lower);
  return lower;
}

[[gnu::always_inline]] block& free_range_set::merge_into_upper(block& upper, block& addition) noexcept {
  upper.base = addition.base;
  upper.bytes += addition.bytes;
  upper.list->grow(upper, addition.uses);
  records_.deallocate(upper.parent->unlink(addition));
  ++coalesces_;
  pairs_.add_with_lower(upper);
  return upper;
}

block& free_range_set::coalesce(block& returned, coalescing coalescing) noexcept {
  if (coalescing == coalescing::complete && !returned.uses.empty()) [[unlikely]] {
    insert(returned);
    return returned;
  }
  auto* const upper = returned.upper;
  auto* const lower = returned.lower;
  bool const free_above = upper && upper->is_free(), free_below = lower && lower->is_free();
  bool const joins_below = free_below && may_coalesce(*lower, returned, coalescing);
  if (free_above && returned.uses.same_streams(upper->uses)) {
    if (!joins_below) return merge_into_upper(*upper, returned);
    merge_upper(returned);
  } else if (free_above && may_coalesce(returned, *upper, coalescing)) {
    merge_upper(returned);
  }
  // Compares the streams again, because merge_upper() may have added uses to `returned`.
  if (free_below && lower->uses.same_streams(returned.uses)) return merge_into_lower(*lower, returned);
  if (joins_below) {
    extract(*lower);
    bool const joined = merge_upper(*lower);
    insert(*lower);
    if (joined) return *lower;
  }
  insert(returned);
  return returned;
}

block& free_range_set::mark_complete(block& range) noexcept {
  extract(range);
  range.uses.clear();
  return coalesce(range, coalescing::same_streams);
}

void free_range_set::prune(block& range) noexcept {
  extract(range);
  range.uses.prune();
  coalesce(range, coalescing::same_streams);
}

bool free_range_set::merge(block& lower) noexcept {
  auto together = lower.uses;
  if (!together.join(lower.upper->uses)) {
    ++refused_coalesces_;
    return false;
  }
  extract(lower);
  merge_upper(lower);
  insert(lower);
  return true;
}

void hole_list::insert(block& hole) noexcept {
  hole.set_state(block_state::hole);
  hole.older = nullptr;
  hole.newer = first_;
  if (first_) first_->older = &hole;
  first_ = &hole;
}

void hole_list::remove(block& hole) noexcept {
  (hole.older ? hole.older->newer : first_) = hole.newer;
  if (hole.newer) hole.newer->older = hole.older;
}

block& hole_list::at(std::uintptr_t address) const noexcept {
  auto* each = first_;
  while (address - each->base >= each->bytes) each = each->newer;
  return *each;
}

// Splits the first `bytes` of the block `range` off as a block of their own.
[[gnu::always_inline]] block& range_allocator::split_front(block& range, std::size_t bytes) noexcept {
  auto& cut_off = metadata_.allocate();
  cut_off.base = range.base;
  cut_off.bytes = bytes;
  range.parent->link_below(cut_off, range);
  range.base += bytes;
  range.bytes -= bytes;
  return cut_off;
}

block& range_allocator::free(block& returned, coalescing coalescing) noexcept {
  table_.erase(returned);
  --returned.parent->live_blocks;
  free_bytes_ += returned.bytes;
  return free_.coalesce(returned, coalescing);
}

block& range_allocator::add(chunk& parent, stream_uses const& uses) {
  metadata_.reserve(1);
  lists().reserve();
  auto& whole = metadata_.allocate();
  whole.base = parent.base;
  whole.bytes = parent.bytes;
  whole.lower = whole.upper = nullptr;
  whole.parent = &parent;
  whole.uses = uses;
  parent.first = parent.last = &whole;
  free_bytes_ += parent.bytes;
  free_.insert(whole);
  return whole;
}

block& range_allocator::extend(chunk& parent, std::size_t bytes, stream_uses const& uses) {
  // The caller may make a hole in the new bytes afterwards. That must not fail, and needs three records and a free
  // list.
  metadata_.reserve(4);
  lists().reserve(1);
  auto& more = metadata_.allocate();
  more.base = parent.end();
  more.bytes = bytes;
  more.uses = uses;
  parent.link_above(more, *parent.last);
  parent.bytes += bytes;
  free_bytes_ += bytes;
  return free_.coalesce(more, coalescing::same_streams);
}

block& range_allocator::adopt(chunk& parent, range_allocator& source) {
  metadata_.reserve(1);
  lists().reserve();
  auto const uses = parent.first->uses;
  source.remove(parent);
  return add(parent, uses);
}

void range_allocator::remove(chunk& parent) noexcept {
  for (auto* each = parent.first; each;) {
    auto& gone = *each;
    each = each->upper;
    if (gone.is_free()) {
      free_bytes_ -= gone.bytes;
      free_.extract(gone);
    }
    if (gone.state() == block_state::hole) holes_.remove(gone);
    metadata_.deallocate(gone);
  }
  parent.first = parent.last = parent.root = nullptr;
}

// Splits a block off a free range. The block is on no list and has the state `allocated`; the caller sets its uses. The
// rest of the range keeps the range's record and its place on the free list. If bytes are left on both sides, the lower
// ones are that rest, and the upper ones become a range next to it on the list. always_inline: each call that no thread
// cache serves runs this code.
[[gnu::always_inline]] block& range_allocator::split(block& range, std::size_t offset, std::size_t bytes) {
  metadata_.reserve(2);
  lists().reserve();
  auto const remainder = range.bytes - offset - bytes;
  free_bytes_ -= bytes;
  if (offset == 0 && remainder == 0) {
    free_.extract(range);
    return range;
  }
  if (offset == 0) {
    free_.pairs().remove_with_lower(range);
    auto& taken = split_front(range, bytes);
    range.list->bins().resized(range);
    return taken;
  }
  auto& block = metadata_.allocate();
  block.base = range.base + offset;
  block.bytes = bytes;
  free_.pairs().remove_with_upper(range);
  range.parent->link_above(block, range);
  range.bytes = offset;
  range.list->bins().resized(range);
  if (remainder == 0) return block;
  auto& rest = metadata_.allocate();
  rest.base = block.end();
  rest.bytes = remainder;
  rest.uses = range.uses;
  range.parent->link_above(rest, block);
  free_.insert(rest, &range);
  return block;
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
  auto& quick_lists = range.list->quick();
  auto const more = std::min(tuning::min_blocks_for_run / 2 - 1, quick_lists.room(bytes));
  table_.reserve(more + 1);
  metadata_.reserve(more + 2);
  auto const uses = range.uses;
  auto& block = split_off(range, 0, (more + 1) * bytes);
  block.bytes = bytes;
  for (auto i = more; i > 0; --i) { // from the highest down, so that the block next to `block` is allocated next
    auto& spare = metadata_.allocate();
    spare.base = block.base + i * bytes;
    spare.bytes = bytes;
    spare.uses = uses;
    block.parent->link_above(spare, block);
    table_.insert(spare);
    quick_lists.push(spare);
  }
  free_bytes_ += more * bytes;
  return block;
}

bool range_allocator::flush_quick_lists() noexcept {
  block* all = nullptr;
  lists().visit([&](free_list& each) { all = each.quick().pop_all(all); });
  bool const any = all;
  while (all) {
    auto& joined = *all;
    all = all->next;
    table_.erase(joined);
    free_.coalesce(joined, coalescing::same_streams);
  }
  return any;
}

block& range_allocator::make_hole(block& last, std::uintptr_t base, std::size_t bytes) {
  metadata_.reserve(3); // each split() asks for two records; those before the last use one in all
  lists().reserve();
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

block& range_allocator::punch_hole(block& range, std::size_t offset, std::size_t bytes) {
  auto* hole = &split(range, offset, bytes);
  hole->uses.clear();
  holes_.insert(*hole);
  if (auto* const upper = hole->upper; upper && upper->state() == block_state::hole) {
    hole->bytes += upper->bytes;
    holes_.remove(*upper);
    metadata_.deallocate(hole->parent->unlink(*upper));
  }
  if (auto* const lower = hole->lower; lower && lower->state() == block_state::hole) {
    lower->bytes += hole->bytes;
    holes_.remove(*hole);
    metadata_.deallocate(lower->parent->unlink(*std::exchange(hole, lower)));
  }
  return *hole;
}

block& range_allocator::fill_hole(block& hole, std::size_t offset, std::size_t bytes, stream_uses const& uses) {
  metadata_.reserve(2);
  lists().reserve();
  auto* filled = &hole;
  if (offset + bytes < hole.bytes) {
    filled = &split_front(hole, offset + bytes);
  } else {
    holes_.remove(hole);
  }
  if (offset > 0) holes_.insert(split_front(*filled, offset));
  filled->uses = uses;
  free_bytes_ += bytes;
  return free_.coalesce(*filled, coalescing::same_streams);
}

block& range_allocator::gather(block& last, std::uintptr_t base, std::size_t bytes, stream_uses const& uses) {
  metadata_.reserve(3); // as in make_hole()
  lists().reserve(1);
  block* joined = nullptr;
  auto end = base + bytes;
  for (auto* at = &last;;) {
    auto* const below = at->lower;
    auto const begin = std::max(base, std::uintptr_t{at->base});
    auto& taken = split(*at, begin - at->base, end - begin);
    if (joined) {
      taken.bytes += joined->bytes;
      metadata_.deallocate(taken.parent->unlink(*joined));
    }
    joined = &taken;
    if (begin == base) break;
    end = begin;
    at = below;
  }
  joined->uses = uses;
  free_bytes_ += bytes;
  free_.insert(*joined);
  return *joined;
}

block& range_allocator::divide(block& whole, std::size_t bytes) {
  metadata_.reserve(1);
  table_.reserve(1);
  auto& upper = metadata_.allocate();
  upper.base = whole.base + bytes;
  upper.bytes = upper.requested = whole.bytes - bytes;
  upper.class_number = whole.class_number;
  upper.allocated_at = whole.allocated_at;
  upper.stream = whole.stream;
  upper.uses = whole.uses;
  upper.was_ready = whole.was_ready;
  upper.set_label(whole.label_number());
  whole.bytes = whole.requested = bytes;
  whole.parent->link_above(upper, whole);
  ++whole.parent->live_blocks;
  table_.insert(upper);
  return upper;
}

void range_allocator::trim_hole(chunk& parent) noexcept {
  auto* const last = parent.last;
  if (!last || last->state() != block_state::hole) return;
  parent.bytes -= last->bytes;
  holes_.remove(*last);
  metadata_.deallocate(parent.unlink(*last));
}

} // namespace gpumem::detail
