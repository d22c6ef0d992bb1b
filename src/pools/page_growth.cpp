// What is mapped, and in which pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
module gpumem:page_growth.impl;
import :page_growth;
import :block;
import :chunks;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :shelf;
import :stream;
import :tags;
import :virtual_pages;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t spare_fraction = 8;
inline constexpr std::size_t limit_pages = 4096;
inline constexpr std::size_t growth_pages = 2;
inline constexpr std::size_t pages_to_return = 4; // where memory is wanted back, page by page
// Where memory is spent on speed. So much each of 16 streams of short kernels came to have.
inline constexpr std::size_t times_its_own = 4;
inline constexpr std::size_t most_spent = std::size_t{8} << 30;
inline constexpr std::size_t generous_pages = 1;
// With half as many pages, the largest of 2 GiB, 16 streams of short kernels lost as much at first on an H100.
inline constexpr std::size_t largest_generous_page = 8 * largest_page;
// Of what is mapped, as of fast pools 1/128: larger pages left more of recorded traces unused, with smaller ones more
// of them moved.
inline constexpr std::size_t compact_pages = 150;
// Of what would be missing at the end, in percent.
inline constexpr std::size_t clearly_less = 60;

std::size_t round_up(std::size_t bytes, std::size_t step) noexcept { return (bytes + step - 1) / step * step; }

std::uintptr_t address_of(block const* range) noexcept { return range ? std::uintptr_t{range->base} : 0; }

std::size_t smallest_of(virtual_pages const& of) noexcept { return std::max(smallest_page, of.granularity()); }
std::size_t smallest_of(pool_shard const& in) noexcept { return in.pages ? smallest_of(*in.pages) : smallest_page; }

std::size_t whole_pages(virtual_pages const& of, std::size_t bytes) noexcept {
  return bytes / of.granularity() * of.granularity();
}

} // namespace

bool page_growth::has_plenty(pool_shard const& own) const noexcept {
  if (chunks_.scarce()) return false;
  auto const unused = std::min(own.ranges.free_bytes(), own.reserved);
  return own.looks.at_work() || (!chunks_.limit() && own.reserved - unused < own.reserved / 8);
}

std::size_t page_growth::to_be_spent(pool_request const& what) const noexcept {
  auto const& own = *what.own;
  if (what.cannot_grow || !is_generous(own)) return 0;
  auto const wanted = own.ranges.by_order().own().size() * times_its_own * std::min(what.bytes, most_spent);
  auto const enough = std::min(wanted, most_spent);
  auto const lacking = enough - std::min(enough, own.ranges.free_bytes());
  auto const plenty = chunks_.limit() - chunks_.limit() / 4;
  return chunks_.limit() ? std::min(lacking, plenty - std::min(plenty, chunks_.reserved())) : lacking;
}

bool page_growth::usable(block const* range, stream_key const& key) const {
  return range && range->is_free() && order_.classify(range->tags, key, rung::completed) != rung::none;
}

// The range at the end of what is mapped, if the stream may use it at once.
block* page_growth::usable_end(pool_request const& what, pool_shard const& in) const {
  auto* const last = in.paged ? in.paged->last : nullptr;
  if (!usable(last, what.key)) return nullptr;
  return in.offset_of(last->end()) == in.pages->mapped_end() ? last : nullptr;
}

// Behind the usable end, in whole pages.
std::size_t page_growth::missing(pool_request const& what, pool_shard const& in, bool exact) const {
  auto const need = what.bytes + (what.alignment - granule);
  auto const* const end = usable_end(what, in);
  auto const least = need - std::min(need - granule, end ? end->bytes : 0);
  auto const page = exact || !in.pages ? smallest_of(in) : least_page(*in.pages);
  auto wanted = least;
  // Shards of many threads have some to spare: what one lacks it stops all of them for.
  if (!exact && !shards_.single()) wanted = std::max(wanted, in.reserved / spare_fraction);
  // Where memory is spent the shard becomes twice as large, if that is not too much.
  if (!exact) wanted = std::max(wanted, std::min(to_be_spent(what), in.reserved));
  return wanted > SIZE_MAX - page ? least : round_up(wanted, page);
}

// The hole for which the least is to be mapped, at its beginning or at its end; within the limit.
std::optional<growth_plan> page_growth::gap_for(pool_request const& what, pool_shard const& in) const {
  auto const need = what.bytes + (what.alignment - granule);
  std::optional<growth_plan> best;
  for (auto const* at = in.paged ? in.paged->first : nullptr; at; at = at->upper) {
    if (at->now() != block_state::hole) continue;
    auto const below = usable(at->lower, what.key) ? at->lower->bytes : 0;
    auto const above = usable(at->upper, what.key) ? at->upper->bytes : 0;
    if (below + at->bytes + above < need) continue;
    auto const beside = std::max(below, above);
    auto const lacking = std::min(round_up(need - std::min(need - granule, beside), smallest_of(in)), at->bytes);
    if (lacking > chunks_.room() || (best && lacking >= best->bytes)) continue;
    bool const upwards = above <= below;
    page_extent const hole{in.offset_of(at->base), at->bytes};
    auto const* const joins = beside == 0 ? nullptr : upwards ? at->lower : at->upper;
    best = growth_plan{hole, lacking, lacking, address_of(joins), !upwards};
  }
  return best;
}

std::optional<growth_plan> page_growth::plan(pool_request const& what, pool_shard const& in, bool exact) const {
  auto const behind = in.pages ? in.pages->addresses() - in.pages->mapped_end() : SIZE_MAX;
  auto const least = missing(what, in, true);
  growth_plan at_end{std::nullopt, missing(what, in, exact), least, address_of(usable_end(what, in))};
  if (at_end.bytes > std::min(chunks_.room(), behind)) at_end.bytes = least;
  bool const fits_behind = at_end.bytes <= behind;
  bool const at_once = fits_behind && (at_end.bytes <= chunks_.room() || !exact);
  if (at_once && (exact || !is_compact())) return at_end;
  auto const gap = gap_for(what, in);
  if (at_once) return gap && gap->bytes <= at_end.bytes / 100 * clearly_less ? gap : at_end;
  return gap || !fits_behind ? gap : at_end;
}

// Under a limit pages give way to others: of large ones few are wholly free. Where nothing presses they are fewer:
// each costs the same, whatever its size.
std::size_t page_growth::page_size(virtual_pages const& of, std::size_t bytes, bool generous) const noexcept {
  auto const next = least_page(of);
  if (chunks_.limit()) return std::clamp(whole_pages(of, chunks_.limit() / limit_pages), smallest_of(of), next);
  if (is_compact()) return next;
  auto const usual = options_.release_threshold == SIZE_MAX ? growth_pages : pages_to_return;
  auto const pages = generous ? generous_pages : usual;
  auto const largest = std::max(next, generous ? largest_generous_page : largest_page);
  return std::clamp(whole_pages(of, bytes / pages), next, largest);
}

// What growth is a multiple of.
std::size_t page_growth::least_page(virtual_pages const& of) const noexcept {
  auto const next = of.next_page();
  if (!is_compact()) return next;
  return std::clamp(whole_pages(of, of.mapped_bytes() / compact_pages), smallest_of(of), next);
}

} // namespace gpumem::detail
