// Finds the guards before and behind a hardened pool's block, and checks its bytes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
module gpumem:guarded_block.impl;
import :fill_pattern;
import :guarded_block;
import :pool_parts;

namespace gpumem::detail {
namespace {

// The number of the user's bytes that are checked at the start and at the end. All bytes of a small block count as its
// start.
struct ends {
  std::size_t begin, end;
};
ends ends_of(guarded_block const& block, guard_layout const& of) noexcept {
  if (block.bytes <= of.poison) return {block.bytes, 0};
  return {of.poison / 2, of.poison / 2};
}

void add(corruption& sum, corruption const& part, std::size_t at) noexcept {
  if (part.bytes == 0) return;
  if (sum.bytes == 0) sum.first = at + part.first;
  sum.bytes += part.bytes;
  sum.last = at + part.last;
}

} // namespace

std::array<byte_run, 2> guarded_block::all(guard_layout const& of) const noexcept {
  auto const [begin, end] = ends_of(*this, of);
  if (begin == bytes) return {{{user - of.guard, of.guard + bytes + tail()}, {}}};
  return {{{user - of.guard, of.guard + begin}, {user + bytes - end, end + tail()}}};
}

std::array<byte_run, 2> guarded_block::inside(guard_layout const& of) const noexcept {
  auto const [begin, end] = ends_of(*this, of);
  return {{{user, begin}, {user + bytes - end, end}}};
}

std::array<byte_run, 2> guarded_block::guards(guard_layout const& of) const noexcept {
  return {{{user - of.guard, of.guard}, {user + bytes, tail()}}};
}

void guarded_block::check(guard_layout const& of, char const* seen) noexcept {
  auto const [begin, end] = ends_of(*this, of);
  auto const* const first = seen + of.guard;
  check({seen, first, first + begin, first + begin + end}, of);
}

void guarded_block::check_in_place(guard_layout const& of) noexcept {
  auto const end = ends_of(*this, of).end;
  check({user - of.guard, user, user + bytes - end, user + bytes}, of);
}

void guarded_block::check(pieces const& seen, guard_layout const& of) noexcept {
  auto const [begin, end] = ends_of(*this, of);
  report = {};
  if (guards_filled) {
    add(report.underrun, compare(seen.front_guard, of.guard, fill_pattern::guard), 0);
    add(report.overrun, compare(seen.tail_guard, tail(), fill_pattern::guard), 0);
  }
  if (!poisoned) return;
  add(report.after_free, compare(seen.begin, begin, fill_pattern::poison), 0);
  add(report.after_free, compare(seen.end, end, fill_pattern::poison), bytes - end);
}

} // namespace gpumem::detail
