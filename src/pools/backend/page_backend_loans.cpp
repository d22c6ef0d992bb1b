// Loans: maps pages in address ranges of borrowers. The pages come back as other free memory does: once their uses are
// complete, the pool moves them or gives them back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
module gpumem:page_backend_loans.impl;
import :page_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :error;
import :growth_policy;
import :page_store;
import :pool_shard;
import :pool_upstream;
import :range_search;
import :reuse_rules;
import :shard_list;
import :sync;
import :virtual_pages;

namespace gpumem::detail {

// Returns where the loan is to lie; nullopt if the borrower's range has too few addresses.
std::optional<page_extent> page_backend::loan_extent(allocation_request const& request) noexcept {
  auto const& into = request.loan->into->pages;
  auto const at = request.loan->offset ? request.loan->offset : into.find_extent(request.bytes);
  auto const space = into.address_space();
  if (!at || request.bytes > space || *at > space - request.bytes) return std::nullopt;
  return page_extent{*at, request.bytes};
}

// Looks at the blocks and holes where the loan is to lie.
page_backend::loan_site page_backend::look_at(page_extent extent, allocation_request const& request) const {
  auto& into = *request.loan->into;
  auto const base = reinterpret_cast<std::uintptr_t>(into.pages.base());
  auto const end = base + extent.end();
  auto at = base + extent.offset;
  loan_site site;
  auto* const parent = into.mapped;
  bool const above = !parent || at >= parent->end(); // most buffers grow at their ends, so this looks there first
  auto* each = above                      ? nullptr
               : at >= parent->last->base ? parent->last
                                          : parent->find_containing(reinterpret_cast<void const*>(at));
  for (; at < end && each; each = each->upper) {
    auto const next = std::min(end, each->end());
    if (each->state() == block_state::hole) {
      site.unmapped.push_back({at - base, next - at});
      site.missing += next - at;
    } else {
      auto const last = parts_.options.cross_stream == reuse_policy::wait ? reuse_tier::wait : reuse_tier::completed;
      auto const how = each->is_free() ? parts_.rules.classify(each->uses, request.key, last) : reuse_tier::none;
      site.lent = site.lent || each->is_live();
      site.how = std::max(site.how, how);
      if (!site.first) site.first = each;
      site.last = each;
    }
    at = next;
  }
  if (at < end) {
    site.unmapped.push_back({at - base, end - at});
    site.missing += end - at;
  }
  return site;
}

// Returns what to map for a loan at a site. A range of free memory that lies there already stays.
growth_plan page_backend::loan_plan(loan_site const& site, allocation_request const& request) noexcept {
  auto const beside = site.first ? std::uintptr_t{site.first->base} : 0;
  return {request.loan->into, std::nullopt, site.missing, site.missing, beside};
}

// Joins the memory at a site, all of which is mapped and free, to one range. Orders the stream after its uses.
attempt<placement> page_backend::join_site(page_extent extent, allocation_request const& request) {
  auto const site = look_at(extent, request);
  auto const begin = reinterpret_cast<std::uintptr_t>(request.loan->into->pages.base()) + extent.offset;
  for (auto* each = site.how == reuse_tier::wait ? site.first : nullptr; each; each = each->upper) {
    if (!reuse_rules::wait_for(each->uses, request.key)) return unexpected<failure>{failure{outcome::exhausted}};
    if (each == site.last) break;
  }
  if (site.first == site.last) return placement{site.first, begin - site.first->base, site.how};
  stream_uses const request_use{
      {&request.key.identity().timeline(), request.key.identity().end_use(extent.bytes, true)}};
  return placement{&site.last->parent->shard->ranges.gather(*site.last, begin, extent.bytes, request_use), 0, site.how};
}

// Finds idle pages that can move to `room` bytes of a loan: pages of its size, outside the place where it is to lie.
// Larger ones would be no unit of what the borrower gives back, and smaller ones cost more than new ones of its size.
std::vector<page_run> page_backend::pages_for_loan(page_extent extent, allocation_request const& request,
                                                   std::size_t room) {
  auto const& loan = *request.loan;
  if (loan.page == 0 || loan.page > largest_page || room < loan.page) return {};
  auto idle =
      idle_.find({.wanted = room, .max_bytes = room, .any_order = true, .largest = loan.page, .smallest = loan.page});
  std::erase_if(idle, [&](page_run const& each) {
    return each.in == loan.into && each.extent.offset < extent.end() && extent.offset < each.extent.end();
  });
  return idle;
}

// Moves idle pages to the holes where the loan is to lie: a page that moves is neither released nor created. Moves none
// if they are not enough for a loan that exceeds the limit otherwise.
void page_backend::move_to_loan(page_extent extent, loan_site const& site, allocation_request const& request) {
  bool const at_limit = lacking(site.missing) > 0;
  if (idle_pages::bytes(pages_for_loan(extent, request, site.missing)) < lacking(site.missing)) return;
  auto& into = *request.loan->into;
  for (auto const& run : site.unmapped) {
    auto idle = pages_for_loan(extent, request, run.bytes);
    if (idle.empty() || (!at_limit && affordable_pages() < idle_pages::count(idle))) continue;
    std::vector<page_origin> origins(idle.size());
    auto const given = idle_.detach(idle);
    auto const origin = [](page_run const& each) { return page_origin{&each.in->pages, each.extent}; };
    origins.erase(std::ranges::transform(idle, origins.begin(), origin).out, origins.end());
    expected<page_extent, failure> moved = page_extent{};
    sync::duration spent{};
    parts_.lock.begin();
    {
      upstream_call const during{parts_.shards};
      auto const begin = sync::now();
      moved = into.pages.move(origins, run.offset);
      spent = sync::now() - begin;
      if (!moved) idle_pages::unmap(idle);
    }
    if (moved) price_.add(spent, idle_pages::count(idle));
    charge_moves(std::min(idle_pages::count(idle), affordable_pages()));
    request.shard->counters.page_moves += bool{moved};
    parts_.chunks.end_release(given);
    static_cast<void>(accept(into, moved, {}));
  }
}

// Takes free memory that is still mapped where the loan is to lie, and maps pages in the holes between. As in grow(),
// first moves idle pages there or unmaps others of the same size, as far as the pool can afford it.
attempt<placement> page_backend::lend(allocation_request const& request, bool exact) {
  begin_looks();
  poll_for_moves(request);
  auto& into = *request.loan->into;
  auto extent = loan_extent(request);
  if (!extent && !request.loan->offset) {
    release_idle({.wanted = SIZE_MAX, .in = &into, .within = {0, into.pages.address_space()}});
    extent = loan_extent(request);
  }
  if (!extent) {
    bool const fits = request.bytes <= into.pages.address_space();
    return unexpected<failure>{failure{fits ? outcome::exhausted : outcome::too_large}};
  }
  auto site = look_at(*extent, request);
  bool const affordable = !exact && may_move() && affordable_pages() > 0;
  if (site.missing > 0 && site.how != reuse_tier::none && (affordable || lacking(site.missing) > 0)) {
    move_to_loan(*extent, site, request);
    site = look_at(*extent, request);
  }
  if (affordable && site.missing > 0 && lacking(site.missing) == 0) {
    auto const unmapped = make_room(request, loan_plan(site, request), 0);
    charge_moves(std::min(affordable_pages(), unmapped / smallest_page));
    site = look_at(*extent, request);
  }
  if (site.lent) return unexpected<failure>{failure{outcome::invalid_argument}};
  if (site.how == reuse_tier::none) return unexpected<failure>{failure{outcome::exhausted}}; // streams still use it
  if (site.missing > parts_.chunks.headroom()) {
    if (parts_.chunks.releasing() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    parts_.lock.wait_for_release(parts_.chunks);
    return attempt<placement>::retry();
  }
  for (auto const& run : site.unmapped) {
    auto const fresh = map({&into, run, run.bytes, run.bytes}, {}, request.loan);
    if (fresh) continue;
    if (&run != site.unmapped.data()) release_idle({.wanted = SIZE_MAX, .in = &into, .within = *extent});
    return unexpected<failure>{fresh.error()};
  }
  auto const joined = join_site(*extent, request);
  if (!joined.is_done() || site.missing == 0) return joined;
  return placement{joined.value().range, joined.value().offset, reuse_tier::none};
}

// Unmaps idle pages for a loan that the limit or the device has refused. While the limit leaves room, the device has
// none.
void page_backend::release_for_loan(allocation_request const& request) {
  auto const extent = loan_extent(request);
  if (!extent) return;
  auto const site = look_at(*extent, request);
  if (site.missing == 0 || site.how == reuse_tier::none) return;
  auto const headroom = parts_.chunks.headroom();
  make_room(request, loan_plan(site, request), headroom < site.missing ? headroom : 0);
}

address_range& page_backend::open_range(std::size_t bytes) {
  auto& lending = parts_.shards.lending();
  parts_.lock.wait();
  drop_closed_ranges();
  lending.addresses.reserve(lending.addresses.size() + 1);
  parts_.lock.begin();
  std::unique_ptr<address_range> made;
  try {
    upstream_call const during{parts_.shards};
    made = parts_.upstream.reserve_range(lending, bytes);
  } catch (...) {
    parts_.lock.end();
    throw;
  }
  parts_.lock.end();
  auto& opened = *made;
  lending.add(std::move(made));
  return opened;
}

void page_backend::drop_closed_ranges() noexcept {
  for (auto const& each : parts_.shards.all()) {
    if (!each->lends) continue;
    parts_.lock.wait();
    auto& ranges = each->addresses;
    for (;;) {
      auto const found = std::ranges::find_if(ranges, [](auto const& one) { return one->closed && !one->mapped; });
      if (found == ranges.end()) break;
      auto gone = std::move(*found);
      ranges.erase(found);
      parts_.lock.begin();
      {
        upstream_call const during{parts_.shards};
        gone.reset();
      }
      parts_.lock.end();
    }
  }
}

} // namespace gpumem::detail
