// Loans: maps pages in address ranges of borrowers. The pages come back as other free memory does: once their uses are
// complete, the pool moves them or gives them back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
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
import :virtual_pages;

namespace gpumem::detail {

// Returns where the borrower's range has addresses for the loan; nullopt if it has too few.
std::optional<growth_plan> page_backend::loan_plan(allocation_request const& request) noexcept {
  auto& into = *request.loan->into;
  auto const at = request.loan->offset ? request.loan->offset : into.pages.find_extent(request.bytes);
  if (!at) return std::nullopt;
  return growth_plan{&into, page_extent{*at, request.bytes}, request.bytes, request.bytes};
}

// Returns the free memory that is still mapped where the borrower wants pages, if the request's stream may use it
// without a wait.
placement page_backend::still_mapped(allocation_request const& request) const noexcept {
  auto& into = *request.loan->into;
  if (!request.loan->offset || !into.mapped) return {};
  auto const begin = reinterpret_cast<std::uintptr_t>(into.pages.base()) + *request.loan->offset;
  auto* const found = into.mapped->find_containing(reinterpret_cast<void const*>(begin));
  if (!found || !found->is_free() || found->end() - begin < request.bytes) return {};
  auto const how = parts_.rules.classify(found->uses, request.key, reuse_tier::completed);
  return how == reuse_tier::none ? placement{} : placement{found, begin - found->base, how};
}

// As in grow(), first unmaps idle pages of the same size, as far as the pool can afford it. Free pages that still lie
// where the loan is to lie, but cannot serve it as they are, leave too.
attempt<placement> page_backend::lend(allocation_request const& request, bool exact) {
  begin_looks();
  poll_for_moves(request);
  if (auto const place = still_mapped(request)) return place;
  auto& into = *request.loan->into;
  if (!exact && may_move() && affordable_pages() > 0 && lacking(request.bytes) == 0) {
    auto const unmapped = evict(request, loan_plan(request), 0);
    charge_moves(std::min(affordable_pages(), unmapped / smallest_page));
  }
  auto plan = loan_plan(request);
  if (request.loan->offset || !plan) {
    auto const all = page_extent{0, into.pages.address_space()};
    release_idle({.wanted = SIZE_MAX, .in = &into, .within = plan ? *plan->hole : all});
    if (!plan) plan = loan_plan(request);
  }
  if (!plan) {
    bool const fits = request.bytes <= into.pages.address_space();
    return unexpected<failure>{failure{fits ? outcome::exhausted : outcome::too_large}};
  }
  if (plan->bytes > parts_.chunks.headroom()) {
    if (parts_.chunks.releasing() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    parts_.lock.wait_for_release(parts_.chunks);
    return attempt<placement>::retry();
  }
  auto const fresh = map(*plan, {}, request.loan);
  if (!fresh) return unexpected<failure>{fresh.error()};
  auto const begin = reinterpret_cast<std::uintptr_t>(into.pages.base()) + plan->hole->offset;
  return placement{*fresh, begin - (*fresh)->base, reuse_tier::none};
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
