// Coalesces free blocks with their neighbours.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
module gpumem:free_range_set.impl;
import :free_range_set;
import :block;
import :block_metadata;
import :chunk;
import :free_list;
import :free_pairs;
import :stream_uses;
import :tuning;

namespace gpumem::detail {
namespace {

inline bool may_coalesce(block const& one, block const& other, free_range_set::coalescing with) noexcept {
  if (with == free_range_set::coalescing::any || one.uses.same_streams(other.uses)) return true;
  if (with == free_range_set::coalescing::same_streams) return false;
  auto const& unused = one.uses.empty() ? one : other;
  auto const& used = one.uses.empty() ? other : one;
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
  records_.release(range.parent->unlink(upper));
  ++coalesces_;
  return true;
}

// Joins a block that is on no list to a free neighbour that the same streams used. The neighbour stays on its free
// list. Its place in the list changes only if the block was used later. Force-inlined, since each free that no thread
// cache takes runs this code.
[[gnu::always_inline]] block& free_range_set::merge_into_lower(block& lower, block& by) noexcept {
  lower.bytes += by.bytes;
  lower.list->grow(lower, by.uses);
  records_.release(lower.parent->unlink(by));
  ++coalesces_;
  pairs_.add_with_upper(lower);
  return lower;
}

[[gnu::always_inline]] block& free_range_set::merge_into_upper(block& upper, block& by) noexcept {
  upper.base = by.base;
  upper.bytes += by.bytes;
  upper.list->grow(upper, by.uses);
  records_.release(upper.parent->unlink(by));
  ++coalesces_;
  pairs_.add_with_lower(upper);
  return upper;
}

block& free_range_set::coalesce(block& freed, coalescing with) noexcept {
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
  // Compares the streams again, because merge_upper() may have added uses to `freed`.
  if (free_below && lower->uses.same_streams(freed.uses)) return merge_into_lower(*lower, freed);
  if (joins_below) {
    extract(*lower);
    bool const joined = merge_upper(*lower);
    insert(*lower);
    if (joined) return *lower;
  }
  insert(freed);
  return freed;
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

} // namespace gpumem::detail
