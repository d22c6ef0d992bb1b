// Cutting, freeing and joining blocks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
module gpumem:ranges.impl;
import :ranges;
import :block;
import :shelf;
import :tags;

namespace gpumem::detail {

// What is inlined by force is on the way of every call that reaches a range, whose cost is its instructions.
[[gnu::always_inline]] void range_map::link_below(block& one, block& upper) noexcept {
  one.home = upper.home;
  one.lower = upper.lower;
  one.upper = &upper;
  (one.lower ? one.lower->upper : one.home->first) = &one;
  upper.lower = &one;
}

// The first bytes of a block become one of their own.
[[gnu::always_inline]] block& range_map::cut_below(block& whole, std::size_t bytes) noexcept {
  auto& cut_off = records_.take();
  cut_off.base = whole.base;
  cut_off.bytes = bytes;
  link_below(cut_off, whole);
  whole.base += bytes;
  whole.bytes -= bytes;
  return cut_off;
}

void range_map::link_above(block& one, block& lower) noexcept {
  one.home = lower.home;
  one.lower = &lower;
  one.upper = lower.upper;
  (one.upper ? one.upper->lower : one.home->last) = &one;
  lower.upper = &one;
}

// Takes out a block of which another has become a part.
[[gnu::always_inline]] void range_map::forget(block& joined) noexcept {
  (joined.lower ? joined.lower->upper : joined.home->first) = joined.upper;
  (joined.upper ? joined.upper->lower : joined.home->last) = joined.lower;
  records_.give(joined);
}

void range_map::pair(block& lower) noexcept {
  lower.pair_prev = nullptr;
  lower.pair_next = pairs_;
  if (pairs_) pairs_->pair_prev = &lower;
  pairs_ = &lower;
}

void range_map::unpair(block& lower) noexcept {
  (lower.pair_prev ? lower.pair_prev->pair_next : pairs_) = lower.pair_next;
  if (lower.pair_next) lower.pair_next->pair_prev = lower.pair_prev;
}

// A block becomes one that can be found.
[[gnu::always_inline]] void range_map::put(block& range, block* beside) noexcept {
  range.become(block_state::free);
  if (beside) {
    beside->place->put_beside(range, *beside);
  } else {
    shelves_.of(range.tags).put(range);
  }
  if (range.upper && range.upper->is_free()) pair(range);
  if (range.lower && range.lower->is_free()) pair(*range.lower);
}

// And no longer one.
[[gnu::always_inline]] void range_map::pull(block& range) noexcept {
  range.place->take(range);
  if (paired(range)) unpair(range);
  if (range.lower && paired(*range.lower)) unpair(*range.lower);
  range.become(block_state::granted);
}

// The free neighbour above becomes a part of a block that is on no shelf; false if their tags are too many.
bool range_map::absorb_upper(block& range) noexcept {
  auto& upper = *range.upper;
  if (!range.tags.join(upper.tags)) {
    ++refused_joins_;
    return false;
  }
  if (upper.is_free()) pull(upper);
  range.bytes += upper.bytes;
  forget(upper);
  ++joins_;
  return true;
}

// A block that is not on a shelf becomes a part of a free neighbour that waits for the same streams, where that lies.
[[gnu::always_inline]] block& range_map::grow_lower(block& lower, block& by) noexcept {
  lower.bytes += by.bytes;
  lower.place->grow(lower, by.tags);
  forget(by);
  ++joins_;
  if (lower.upper && lower.upper->is_free()) pair(lower);
  return lower;
}

[[gnu::always_inline]] block& range_map::grow_upper(block& upper, block& by) noexcept {
  upper.base = by.base;
  upper.bytes += by.bytes;
  upper.place->grow(upper, by.tags);
  forget(by);
  ++joins_;
  if (upper.lower && upper.lower->is_free()) pair(*upper.lower);
  return upper;
}

// Joins a block that is not on a shelf with its neighbours; the whole is on one then.
[[gnu::always_inline]] block& range_map::settle(block& freed, joining with) noexcept {
  auto* const upper = freed.upper;
  auto* const lower = freed.lower;
  bool const free_above = upper && upper->is_free(), free_below = lower && lower->is_free();
  bool const joins_below = free_below && may_join(*lower, freed, with);
  if (free_above && freed.tags.same_streams(upper->tags)) {
    if (!joins_below) return grow_upper(*upper, freed);
    absorb_upper(freed);
  } else if (free_above && may_join(freed, *upper, with)) {
    absorb_upper(freed);
  }
  // By now it may wait for more streams.
  if (free_below && lower->tags.same_streams(freed.tags)) return grow_lower(*lower, freed);
  if (joins_below) {
    pull(*lower);
    bool const joined = absorb_upper(*lower);
    put(*lower, nullptr);
    if (joined) return *lower;
  }
  put(freed, nullptr);
  return freed;
}

block& range_map::release(block& freed, joining with) noexcept {
  granted_.drop(freed);
  --freed.home->live_blocks;
  free_bytes_ += freed.bytes;
  return settle(freed, with);
}

void range_map::prepare(std::size_t blocks, std::size_t streams) {
  records_.reserve(blocks);
  granted_.reserve(blocks);
  shelves_.reserve(streams);
}

block& range_map::add(chunk& home, tag_set const& tags) {
  records_.reserve(1);
  shelves_.reserve();
  auto& whole = records_.take();
  whole.base = home.base;
  whole.bytes = home.bytes;
  whole.lower = whole.upper = nullptr;
  whole.home = &home;
  whole.tags = tags;
  home.first = home.last = &whole;
  free_bytes_ += home.bytes;
  put(whole, nullptr);
  return whole;
}

block& range_map::extend(chunk& home, std::size_t bytes, tag_set const& tags) {
  records_.reserve(4); // three for a hole that the caller may carve from it
  shelves_.reserve(1); // the one may be given away before the caller carves
  auto& more = records_.take();
  more.base = home.end();
  more.bytes = bytes;
  more.tags = tags;
  link_above(more, *home.last);
  home.bytes += bytes;
  free_bytes_ += bytes;
  return settle(more, joining::alike);
}

block& range_map::take_over(chunk& home, range_map& from) {
  records_.reserve(1);
  shelves_.reserve();
  auto const tags = home.first->tags;
  from.remove(home);
  return add(home, tags);
}

void range_map::remove(chunk& home) noexcept {
  for (auto* each = home.first; each;) {
    auto& gone = *each;
    each = each->upper;
    if (gone.is_free()) {
      free_bytes_ -= gone.bytes;
      pull(gone);
    }
    if (gone.now() == block_state::hole) unlink_hole(gone);
    records_.give(gone);
  }
  home.first = home.last = nullptr;
}

block* range_map::covering(chunk const& home, void const* pointer) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto* each = home.first; each; each = each->upper) {
    if (address < each->end()) return each;
  }
  return nullptr;
}

// The range keeps what is left of it, in its place among those freed before and after; what is left on both sides of
// the cut lies beside it.
[[gnu::always_inline]] block& range_map::cut(block& range, std::size_t offset, std::size_t bytes) {
  records_.reserve(2);
  shelves_.reserve();
  auto const left = range.bytes - offset - bytes;
  free_bytes_ -= bytes;
  if (offset == 0 && left == 0) {
    pull(range);
    return range;
  }
  if (offset == 0) {
    if (range.lower && paired(*range.lower)) unpair(*range.lower);
    auto& taken = cut_below(range, bytes);
    range.place->bins().resized(range);
    return taken;
  }
  auto& taken = records_.take();
  taken.base = range.base + offset;
  taken.bytes = bytes;
  if (paired(range)) unpair(range);
  link_above(taken, range);
  range.bytes = offset;
  range.place->bins().resized(range);
  if (left == 0) return taken;
  auto& rest = records_.take();
  rest.base = taken.end();
  rest.bytes = left;
  rest.tags = range.tags;
  link_above(rest, taken);
  put(rest, &range);
  return taken;
}

block& range_map::take(block& range, std::size_t offset, std::size_t bytes) {
  granted_.reserve(1);
  auto& taken = cut(range, offset, bytes);
  taken.tags.clear();
  ++taken.home->live_blocks;
  granted_.put(taken);
  return taken;
}

block& range_map::take_span(block& range, std::size_t bytes) {
  auto& others = range.place->spans();
  auto const more = std::min(least_for_span / 2 - 1, others.room(bytes));
  granted_.reserve(more + 1);
  records_.reserve(more + 2);
  auto const tags = range.tags;
  auto& taken = take(range, 0, (more + 1) * bytes);
  taken.bytes = bytes;
  for (auto i = more; i > 0; --i) { // the one beside it is to go out next
    auto& spare = records_.take();
    spare.base = taken.base + i * bytes;
    spare.bytes = bytes;
    spare.tags = tags;
    link_above(spare, taken);
    granted_.put(spare);
    others.put(spare);
  }
  free_bytes_ += more * bytes;
  return taken;
}

bool range_map::join_spans() noexcept {
  block* all = nullptr;
  shelves_.visit([&](shelf& each) { all = each.spans().take_all(all); });
  bool const any = all;
  while (all) {
    auto& joining_in = *all;
    all = all->next;
    granted_.drop(joining_in);
    settle(joining_in, joining::alike);
  }
  return any;
}

block& range_map::carve(block& last, std::uintptr_t base, std::size_t bytes) {
  records_.reserve(3); // each cut asks for two; the first and the last of them take one each
  shelves_.reserve();
  auto end = base + bytes;
  for (auto* at = &last;;) {
    auto* const below = at->lower;
    auto const begin = std::max(base, std::uintptr_t{at->base});
    auto& hole = hollow_out(*at, begin - at->base, end - begin);
    if (begin == base) return hole;
    end = begin;
    at = below;
  }
}

void range_map::link_hole(block& hole) noexcept {
  hole.become(block_state::hole);
  hole.older = nullptr;
  hole.newer = holes_;
  if (holes_) holes_->older = &hole;
  holes_ = &hole;
}

void range_map::unlink_hole(block& hole) noexcept {
  (hole.older ? hole.older->newer : holes_) = hole.newer;
  if (hole.newer) hole.newer->older = hole.older;
}

block& range_map::hollow_out(block& range, std::size_t offset, std::size_t bytes) {
  auto* hole = &cut(range, offset, bytes);
  hole->tags.clear();
  link_hole(*hole);
  if (auto* const upper = hole->upper; upper && upper->now() == block_state::hole) {
    hole->bytes += upper->bytes;
    unlink_hole(*upper);
    forget(*upper);
  }
  if (auto* const lower = hole->lower; lower && lower->now() == block_state::hole) {
    lower->bytes += hole->bytes;
    unlink_hole(*hole);
    forget(*std::exchange(hole, lower));
  }
  return *hole;
}

block& range_map::hole_at(std::uintptr_t address) noexcept {
  auto* at = holes_;
  while (address - at->base >= at->bytes) at = at->newer;
  return *at;
}

block& range_map::fill(block& hole, std::size_t offset, std::size_t bytes, tag_set const& tags) {
  records_.reserve(2);
  shelves_.reserve();
  auto* filled = &hole;
  if (offset + bytes < hole.bytes) {
    filled = &cut_below(hole, offset + bytes);
  } else {
    unlink_hole(hole);
  }
  if (offset > 0) link_hole(cut_below(*filled, offset));
  filled->tags = tags;
  free_bytes_ += bytes;
  return settle(*filled, joining::alike);
}

void range_map::cut_off_hole(chunk& home) noexcept {
  auto* const last = home.last;
  if (!last || last->now() != block_state::hole) return;
  home.bytes -= last->bytes;
  unlink_hole(*last);
  forget(*last);
}

block& range_map::complete(block& range) noexcept {
  pull(range);
  range.tags.clear();
  return settle(range, joining::alike);
}

void range_map::prune(block& range) noexcept {
  pull(range);
  range.tags.prune();
  settle(range, joining::alike);
}

bool range_map::join(block& lower) noexcept {
  auto together = lower.tags;
  if (!together.join(lower.upper->tags)) {
    ++refused_joins_;
    return false;
  }
  pull(lower);
  absorb_upper(lower);
  put(lower, nullptr);
  return true;
}

std::size_t range_map::largest_run(chunk const& home) noexcept {
  std::size_t largest = 0, run = 0;
  for (auto const* each = home.first; each; each = each->upper) {
    run = each->is_free() ? run + each->bytes : 0;
    largest = std::max(largest, run);
  }
  return largest;
}

std::size_t range_map::largest_free() noexcept {
  std::size_t most = 0;
  shelves_.visit([&](shelf const& each) { most = std::max(most, each.bins().largest()); });
  return most;
}

} // namespace gpumem::detail
