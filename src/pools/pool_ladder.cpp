// Own stream and nobody's, ordered before, completed, behind a wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
module gpumem:pool_ladder.impl;
import :pool_ladder;
import :block;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :shelf;
import :size_class;
import :stream;
import :sync;
import :tags;
import :time_budget;
import :timeline;

namespace gpumem::detail {
namespace {

// An event recorded and queried, on an H200: a constant, since a thread may be stopped in between.
inline constexpr time_budget::nanoseconds cost_a_stream = std::chrono::nanoseconds{400};

} // namespace

pool_place pool_ladder::find(pool_request const& what, shard_span among) const {
  bool const some = std::ranges::any_of(among, [&](auto* in) { return in->ranges.free_bytes() >= what.bytes; });
  auto const place = some ? known(what, among) : pool_place{};
  return place ? place : learnt(what, among);
}

pool_place pool_ladder::behind_wait(pool_request const& what, shard_span among) const {
  if (furthest_ != reuse::wait || what.key.is_host() || !what.key.has_handle()) return {};
  order_.join_free(what.key, rung::wait, among);
  auto place = at_once(what, among);
  if (!place) place = elsewhere(what, rung::wait, among);
  return place && pool_order::wait_for(place.range->tags, what.key) ? place : pool_place{};
}

// The smallest range of the cheapest rung, of what other streams have freed, or several.
pool_place pool_ladder::elsewhere(pool_request const& what, rung furthest, shard_span among) const {
  pool_place best;
  auto const look = [&](block& range) {
    std::size_t offset = 0;
    if (!fits(range, what.bytes, what.alignment, offset)) return;
    auto const how = order_.classify(range.tags, what.key, furthest);
    if (how > best.how || how == rung::none) return;
    if (how == best.how && best && range.bytes >= best.range->bytes) return;
    best = {&range, offset, how};
  };
  for (auto* const shard : among) {
    auto& all = shard->ranges.by_order();
    for (auto* const each : all.own()) {
      if (each->empty() || (each->order() == &what.key.order() && !order_.by_host(what.key))) continue;
      auto const oldest = each->oldest()->tags.begin()->newest;
      // By the oldest of a shelf one knows whether any of it is complete, or ordered before.
      bool const some = furthest == rung::wait || each->order()->completed(oldest) ||
                        (!order_.by_host(what.key) && what.key.order().ordered_after(*each->order(), oldest));
      if (some) each->bins().visit_from(what.bytes, look);
    }
    all.mixed().bins().visit_from(what.bytes, look);
  }
  return best;
}

// Neither the stream itself nor nobody has left anything that would do.
pool_place pool_ladder::left_by_others(pool_request const& what, shard_span among) const {
  if (auto const place = elsewhere(what, rung::ordered, among)) return place;
  return order_.give_completed(among) ? at_once(what, among) : pool_place{};
}

// After one look at what has completed. Streams that run short kernels would have a look for each of them: where looks
// take too much of the time the pool grows instead, until each stream finds memory of its own.
pool_place pool_ladder::learnt(pool_request const& what, shard_span among) const {
  auto& looks = what.own->looks;
  if (!looks.unlimited() && !what.cannot_grow && looks.left(sync::now()) < time_budget::nanoseconds{0}) return {};
  auto const cost = static_cast<double>(order_.learn_completion(&what.key, among)) * cost_a_stream;
  if (!what.cannot_grow) looks.spend(cost); // at the limit looks are made all the same
  order_.give_completed(among);
  order_.join_free(what.key, rung::completed, among);
  auto const place = at_once(what, among);
  return place ? place : elsewhere(what, rung::completed, among);
}

} // namespace gpumem::detail
