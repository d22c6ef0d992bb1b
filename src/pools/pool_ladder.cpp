// Own stream and nobody's, ordered before, completed, behind a wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
module gpumem:pool_ladder.impl;
import :pool_ladder;
import :block;
import :chunks;
import :page_growth;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :shelf;
import :size_class;
import :stream;
import :tags;
import :timeline;

namespace gpumem::detail {
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

// A large range is about to be cut for a small request: what others have freed may fit better once its completion is
// known. In compact pools a look is worth what it costs for what it joins alone: a wrong cut moves pages later.
pool_place pool_ladder::better(pool_request const& what, pool_place place, shard_span among) const {
  if (furthest_ == reuse::own || growth_.is_roomy(*what.own)) return place;
  bool const may_be = growth_.is_compact() || others_fit_better(what, place, among);
  return may_be && completion_found(what, among) ? at_once(what, among) : place;
}

// Complete or not; to find that out costs two driver calls for each stream.
bool pool_ladder::others_fit_better(pool_request const& what, pool_place place, shard_span among) const {
  auto const fits_better = [&](shelf const& from) {
    std::size_t offset = 0;
    auto const* const found = from.bins().find(what.bytes, what.alignment, offset);
    return found && found->bytes < place.range->bytes;
  };
  auto const left_by_others = [&](shelf const* each) {
    return each->order() != &what.key.order() && fits_better(*each);
  };
  return std::ranges::any_of(among, [&](pool_shard* in) {
    auto& all = in->ranges.by_order();
    return std::ranges::any_of(all.own(), left_by_others) || fits_better(all.mixed());
  });
}

// After looks of which nothing came, or that came too early, the next are left out, ever more.
bool pool_ladder::completion_found(pool_request const& what, shard_span among) const {
  auto& own = *what.own;
  if (!growth_.is_compact() && own.looks.leave_out()) return false;
  auto const looked = order_.learn_completion(&what.key, among);
  bool const found = order_.give_completed(among);
  own.looks.note(looked, own.paths.locked_calls);
  own.looks.note_better_fit(found && looked.early == 0);
  return found;
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

// After one look at what has completed; none while memory is spent so as not to look.
pool_place pool_ladder::learnt(pool_request const& what, shard_span among) const {
  if (growth_.to_be_spent(what) > 0) return {};
  what.own->looks.note(order_.learn_completion(&what.key, among), what.own->paths.locked_calls);
  order_.give_completed(among);
  order_.join_free(what.key, rung::completed, among);
  auto const place = at_once(what, among);
  return place ? place : elsewhere(what, rung::completed, among);
}

} // namespace gpumem::detail
