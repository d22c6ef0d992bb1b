// Plans what a pool of pages maps for a request, and keeps the median of the last times per page.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <base/tuning.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
module gpumem:growth_policy.impl;
import :growth_policy;
import :block;
import :pool_shard;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :stream;
import :virtual_pages;

namespace gpumem::detail {
namespace {

std::size_t round_up(std::size_t bytes, std::size_t step) noexcept { return (bytes + step - 1) / step * step; }

std::uintptr_t address_of(block const* range) noexcept { return range ? std::uintptr_t{range->base} : 0; }

// Returns how many bytes lie between an offset and the next aligned address.
std::size_t slack(std::size_t alignment, address_range const& addresses, std::size_t offset) noexcept {
  return (0 - (reinterpret_cast<std::uintptr_t>(addresses.pages.base()) + offset)) & (alignment - 1);
}

// Returns whether the block belongs to the stream or was last used by it. If so, the addresses beside the block belong
// to the stream's segment, the addresses where that stream's memory grows.
bool is_of(block const* neighbour, stream_key const& key) noexcept {
  if (!neighbour || neighbour->state() == block_state::hole) return false;
  if (!neighbour->is_free()) return neighbour->stream == &key.identity().timeline();
  return neighbour->uses.find(key.identity().timeline()) != nullptr;
}

} // namespace

// A plan, and two facts to compare it with others: whether its addresses belong to the stream's segment, and how many
// addresses are free there.
struct growth_policy::candidate {
  growth_plan plan;
  bool own_segment;
  std::size_t address_space;
  inline bool better_than(candidate const& other) const noexcept {
    if (plan.bytes != other.plan.bytes) return plan.bytes < other.plan.bytes;
    return own_segment != other.own_segment ? own_segment : address_space > other.address_space;
  }
};

bool growth_policy::usable(block const* range, stream_key const& key) const {
  return range && range->is_free() && rules_.classify(range->uses, key, reuse_tier::same_stream) != reuse_tier::none;
}

// Returns the range at the end of the mapped addresses if the stream may use it without a wait; otherwise null.
block* growth_policy::usable_end(allocation_request const& request, address_range const& addresses) const {
  auto* const last = addresses.mapped ? addresses.mapped->last : nullptr;
  if (!usable(last, request.key)) return nullptr;
  return addresses.offset_of(last->end()) == addresses.pages.mapped_end() ? last : nullptr;
}

// Returns how many bytes to map, in whole pages, so that the new pages and the range `end` before them hold the
// request. `end` is a range that the stream may use without a wait, or null; the pages then begin at `offset`.
std::size_t growth_policy::shortfall(allocation_request const& request, address_range const& addresses,
                                     block const* end, std::size_t offset, bool exact) const {
  auto const need = request.bytes + slack(request.alignment, addresses, end ? addresses.offset_of(end->base) : offset);
  auto const least = need - std::min(need - granule, end ? end->bytes : 0);
  auto const page = exact ? unit_ : usual_page(addresses.shard->reserved);
  auto wanted = least;
  // With several shards each growth for a small or medium block adds an eighth of the shard's bytes. Otherwise threads
  // would run out of memory more often, and then lock all shards.
  if (!exact && !shards_.single() && !shards_.is_shared(request.bytes))
    wanted = std::max(wanted, addresses.shard->reserved / 8);
  return wanted > SIZE_MAX - page ? least : round_up(wanted, page);
}

// Returns the hole in which the fewest bytes must be mapped for the request, at the start or at the end of the hole.
// Leaves out holes that need more bytes than the limit still allows.
std::optional<growth_policy::candidate> growth_policy::best_hole(allocation_request const& request,
                                                                 address_range& addresses, bool exact) const {
  auto const need = request.bytes + (request.alignment - granule);
  auto const page = exact ? unit_ : usual_page(addresses.shard->reserved);
  std::optional<candidate> best;
  addresses.shard->ranges.holes().visit([&](block const& each_hole) {
    assert_shard_held();
    if (each_hole.parent != addresses.mapped) return;
    auto const bytes_below = usable(each_hole.lower, request.key) ? each_hole.lower->bytes : 0;
    auto const bytes_above = usable(each_hole.upper, request.key) ? each_hole.upper->bytes : 0;
    if (bytes_below + each_hole.bytes + bytes_above < need) return;
    auto const beside = std::max(bytes_below, bytes_above);
    auto const lacking = std::min(round_up(need - std::min(need - granule, beside), page), each_hole.bytes);
    if (lacking > chunks_.headroom()) return;
    bool const upwards = bytes_above <= bytes_below;
    page_extent const hole{addresses.offset_of(each_hole.base), each_hole.bytes};
    auto const* const neighbour = beside == 0 ? nullptr : upwards ? each_hole.lower : each_hole.upper;
    candidate const found{{&addresses, hole, lacking, lacking, address_of(neighbour), !upwards},
                          is_of(each_hole.lower, request.key),
                          each_hole.bytes};
    if (!best || found.better_than(*best)) best = found;
  });
  return best;
}

// Returns addresses for a new segment after all mapped addresses. Leaves addresses free before it, in which the last
// segment can grow. New segments start in the lower half of the addresses only, so that the upper half stays in one
// piece for the largest requests.
std::optional<page_extent> growth_policy::new_segment(allocation_request const& request,
                                                      address_range const& addresses) const {
  if (addresses.shard->ranges.lists().single_stream().size() <= 1 || request.key.identity().is_host())
    return std::nullopt;
  auto const step = round_up(addresses.pages.address_space() / tuning::segment_fraction, addresses.pages.granularity());
  auto const begin = round_up(addresses.pages.mapped_end(), step);
  if (begin + step > addresses.pages.address_space() / 2) return std::nullopt;
  return page_extent{begin, addresses.pages.address_space() - begin};
}

std::optional<growth_plan> growth_policy::plan_in(allocation_request const& request, address_range& addresses,
                                                  bool exact) const {
  auto const mapped = addresses.pages.mapped_end();
  auto const unmapped_bytes = addresses.pages.address_space() - mapped;
  auto const* const end = usable_end(request, addresses);
  auto const least = shortfall(request, addresses, end, mapped, true);
  candidate at_end{
      {&addresses, std::nullopt, shortfall(request, addresses, end, mapped, exact), least, address_of(end)},
      is_of(addresses.mapped ? addresses.mapped->last : nullptr, request.key),
      unmapped_bytes};
  if (at_end.plan.bytes > std::min(chunks_.headroom(), unmapped_bytes)) at_end.plan.bytes = least;
  bool const fits_behind = at_end.plan.bytes <= unmapped_bytes;
  bool const at_once = fits_behind && (at_end.plan.bytes <= chunks_.headroom() || !exact);
  if (at_once && exact) return at_end.plan;
  auto const hole = best_hole(request, addresses, exact);
  if (!at_once) return hole ? std::optional{hole->plan} : fits_behind ? std::optional{at_end.plan} : std::nullopt;
  auto const& best = hole && hole->better_than(at_end) ? *hole : at_end;
  if (best.own_segment || best.plan.beside != 0) return best.plan;
  auto const segment = new_segment(request, addresses);
  if (!segment) return best.plan;
  growth_plan const apart{&addresses, segment, shortfall(request, addresses, nullptr, segment->offset, false),
                          shortfall(request, addresses, nullptr, segment->offset, true)};
  return apart.bytes <= std::min(chunks_.headroom(), segment->bytes) ? apart : best.plan;
}

std::optional<growth_plan> growth_policy::plan(allocation_request const& request, pool_shard const& shard,
                                               bool exact) const {
  std::optional<growth_plan> best;
  for (auto const& each : std::views::reverse(shard.addresses)) {
    auto const found = plan_in(request, *each, exact);
    if (found && (!best || found->bytes < best->bytes)) best = found;
  }
  return best;
}

bool growth_policy::is_short_of_addresses(pool_shard const& shard, std::size_t most) noexcept {
  auto const newest = shard.addresses.back()->pages.address_space();
  return newest < most && newest / tuning::addresses_per_byte < shard.reserved;
}

std::size_t growth_policy::min_moved_page(std::size_t reserved) const noexcept {
  return usual_page(reserved) / 4 * tuning::min_moved_quarters;
}

// The page size grows with the shard's bytes. Under a limit pages are smaller: there the memory of a page can go to
// other requests only when the whole page is free, and large pages are rarely free as a whole.
std::size_t growth_policy::page_size(std::size_t reserved, std::size_t bytes, std::size_t max_pages) const noexcept {
  auto const whole = [this](std::size_t size) { return size / unit_ * unit_; };
  auto const most = std::max(largest_page, unit_);
  if (chunks_.limit()) {
    auto const largest = std::max(
        {std::min(whole(reserved / tuning::page_fraction), most), whole(bytes / tuning::page_fraction), unit_});
    return std::clamp(whole(chunks_.limit() / tuning::limit_page_fraction), unit_, largest);
  }
  auto const few = round_up(bytes / std::max(max_pages, std::size_t{1}), unit_);
  return std::clamp(std::max(whole(reserved / tuning::page_fraction), few), unit_, most);
}

page_price::page_price() noexcept : recent_{tuning::page_cost}, median_{tuning::page_cost} {}

void page_price::add(nanoseconds time, std::size_t pages) noexcept {
  if (pages == 0) return;
  recent_[count_++ % kept] = time / static_cast<double>(pages);
  auto sorted = recent_;
  auto const end = sorted.begin() + std::min(count_, kept), middle = sorted.begin() + (end - sorted.begin() - 1) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median_ = std::max(*middle, least);
}

} // namespace gpumem::detail
