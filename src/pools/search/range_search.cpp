// The searches for a free range, by reuse tier: from ranges that need no order to those for which the stream must wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
module gpumem:range_search.impl;
import :range_search;
import :block;
import :pool_options;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :stream;
import :stream_timeline;
import :sync;
import :time_budget;

namespace gpumem::detail {

placement range_search::find(allocation_request const& request, shard_span shards) {
  if (request.loan) return {};
  bool const any = std::ranges::any_of(shards, [&](pool_shard* shard) {
    assert_shard_held();
    return shard->ranges.free_bytes() >= request.bytes;
  });
  auto const place = any ? find_without_poll(request, shards) : placement{};
  return place ? place : find_after_poll(request, shards);
}

placement range_search::find_with_wait(allocation_request const& request, shard_span shards) {
  if (policy_ != reuse_policy::wait || request.key.identity().is_host() || !request.key.identity().has_handle() ||
      request.loan)
    return {};
  rules_.coalesce_usable(request.key, reuse_tier::wait, shards);
  auto place = find_own_or_ready(request, shards);
  if (!place) place = find_cross_stream(request, reuse_tier::wait, shards);
  return place && reuse_rules::wait_for(place.range->uses, request.key) ? place : placement{};
}

// Searches the ranges that another stream freed, and the joined ranges whose parts several streams freed. Returns the
// smallest range of the cheapest tier.
placement range_search::find_cross_stream(allocation_request const& request, reuse_tier last_tier, shard_span shards) {
  placement best;
  auto const consider = [&](block& range) {
    std::size_t offset = 0;
    if (!fits(range, request.bytes, request.alignment, offset)) return;
    auto const how = rules_.classify(range.uses, request.key, last_tier);
    if (how > best.how || how == reuse_tier::none) return;
    if (how == best.how && best && range.bytes >= best.range->bytes) return;
    best = {&range, offset, how};
  };
  for (auto* const shard : shards) {
    auto& lists = shard->ranges.lists();
    for (auto* const each : lists.single_stream()) {
      if (each->empty() || (each->timeline() == &request.key.identity().timeline() && !rules_.needs_host(request.key)))
        continue;
      auto const oldest = each->oldest()->uses.begin()->newest;
      // The oldest range of the stream has the lowest epoch. So if its use is neither complete nor ordered, this is so
      // for all ranges of the list.
      bool const any = last_tier == reuse_tier::wait || each->timeline()->completed(oldest) ||
                       (!rules_.needs_host(request.key) &&
                        request.key.identity().timeline().ordered_after(*each->timeline(), oldest));
      if (any) each->bins().visit_from(request.bytes, consider);
    }
    lists.multi_stream().bins().visit_from(request.bytes, consider);
  }
  return best;
}

// Searches the ranges that other streams have freed. If none fits, makes complete ranges ready and searches again.
// Called if no range of the stream's own and no ready range fits.
placement range_search::find_ordered(allocation_request const& request, shard_span shards) {
  if (auto const place = find_cross_stream(request, reuse_tier::ordered, shards)) return place;
  return rules_.promote_completed(shards) ? find_own_or_ready(request, shards) : placement{};
}

// Polls once, and searches again. Streams of short kernels would poll at each request. So if polls have used up their
// share of the time, this function finds nothing. The pool then grows, until each stream has enough memory of its own.
placement range_search::find_after_poll(allocation_request const& request, shard_span shards) {
  auto& budget = request.shard->poll_budget;
  if (!budget.unlimited() && !request.growth_failed && budget.left(sync::now()) < time_budget::nanoseconds{0})
    return {};
  // The time to record and query one event, on an H200. The time of each poll is not measured, since it would be far
  // too large if the thread was preempted.
  constexpr std::chrono::nanoseconds poll_cost{400};
  auto const cost = static_cast<double>(rules_.poll_streams(&request.key, shards)) * poll_cost;
  if (!request.growth_failed) budget.spend(cost); // if the pool cannot grow, polls are free of charge
  rules_.promote_completed(shards);
  rules_.coalesce_usable(request.key, reuse_tier::completed, shards);
  auto const place = find_own_or_ready(request, shards);
  return place ? place : find_cross_stream(request, reuse_tier::completed, shards);
}

} // namespace gpumem::detail
