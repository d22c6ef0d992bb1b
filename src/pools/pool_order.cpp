// Who may use free memory when, and how a pool learns of completion.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:pool_order.impl;
import :pool_order;
import :block;
import :cuda;
import :ranges;
import :shards;
import :shelf;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

// Shorter than it takes to find a stream behind.
inline constexpr sync::duration patience = std::chrono::microseconds{4};

// What completed belongs to nobody; each range comes by once, from the oldest on.
void give_completed_in(pool_shard& in) noexcept {
  auto& all = in.ranges.by_order();
  for (auto* const each : all.own()) {
    auto const& order = *each->order();
    while (each->oldest() && order.completed(each->oldest()->tags.begin()->newest)) {
      in.ranges.complete(*each->oldest());
      ++in.paths.completed;
    }
  }
  for (auto* range = all.mixed().oldest(); range;) {
    auto& looked_at = *range;
    range = range->newer;
    if (std::ranges::none_of(looked_at.tags, &tag::completed)) continue;
    if (range && range == looked_at.upper) range = range->newer; // it may become a part of this one
    in.ranges.prune(looked_at);
    ++in.paths.completed;
  }
}

} // namespace

// The host, and streams of a pool whose memory the host may touch, need what is complete; a wait on a stream is no
// help.
rung pool_order::classify(tag_set const& tags, stream_key const& key, rung furthest) const {
  if (by_host(key)) return tags.completed() ? rung::completed : rung::none;
  if (tags.empty()) return rung::completed;
  auto how = rung::own;
  for (auto const& use : tags) {
    auto needed = rung::none;
    if (use.order == &key.order()) {
      needed = rung::own;
    } else if (key.order().ordered_after(*use.order, use.newest)) {
      needed = rung::ordered;
    } else if (shares_ && use.completed()) {
      needed = rung::completed;
    } else if (furthest == rung::wait && use.order->waitable(use.newest)) {
      needed = rung::wait;
    }
    how = std::max(how, needed);
    if (how > furthest) return rung::none;
  }
  return how;
}

bool pool_order::give_completed(shard_span among) const noexcept {
  if (!shares_) return false;
  bool any = false;
  for (auto* const shard : among) {
    auto const before = shard->paths.completed;
    give_completed_in(*shard);
    any = any || shard->paths.completed != before;
  }
  return any;
}

void pool_order::join_free(stream_key const& key, rung furthest, shard_span among) const {
  for (auto* const shard : among) {
    shard->ranges.join_all([&](block const& b) { return classify(b.tags, key, furthest) != rung::none; });
  }
}

std::size_t pool_order::learn_completion(stream_key const* asking, shard_span among) const {
  bool const host = host_accessible_ || (asking && asking->is_host());
  if (!shares_ && asking && !host) return 0;
  auto const* const itself = asking ? &asking->order() : nullptr;
  for (auto* const order : open_timelines(true, among)) {
    if (order == itself && !host) continue; // what a stream has freed it may use as it is
    order->cover(order == itself && asking->has_handle() ? std::optional{asking->handle()} : std::nullopt);
  }
  auto const open = open_timelines(false, among);
  for (auto* const order : open) order->poll();
  return open.size();
}

void pool_order::learn_completion_for_moves(stream_key const& asking, shard_span among) const {
  if (asking.has_handle() && !asking.order().has_evidence()) asking.order().cover(asking.handle());
  learn_completion(nullptr, among);
  auto open = open_timelines(false, among);
  auto const begin = sync::now();
  while (!open.empty() && !asking.order().is_behind() && sync::now() - begin < patience) {
    std::erase_if(open, [](timeline* each) { return each->is_behind() || !each->poll(); });
  }
}

std::vector<timeline*> pool_order::open_timelines(bool without_evidence, shard_span among) {
  std::vector<timeline*> found;
  for (auto* const shard : among) {
    auto& all = shard->ranges.by_order();
    for (auto const* const each : all.own()) {
      if (each->open(without_evidence)) found.push_back(each->order());
    }
    for (auto const* range = all.mixed().oldest(); range; range = range->newer) {
      for (auto const& use : range->tags) {
        if (!use.completed() && !(without_evidence && use.has_evidence())) found.push_back(use.order);
      }
    }
  }
  std::ranges::sort(found, {}, &timeline::index);
  auto const [first, last] = std::ranges::unique(found);
  found.erase(first, last);
  return found;
}

bool pool_order::may_complete(shard_span among) noexcept {
  auto const may = [](block const& range) { return std::ranges::any_of(range.tags, &tag::may_complete); };
  return std::ranges::any_of(among, [&](pool_shard* in) {
    auto& all = in->ranges.by_order();
    for (auto const* const each : all.own()) {
      for (auto const* range = each->newest(); range; range = range->older) {
        if (may(*range)) return true;
        if (range->tags.completed()) break; // what is older is complete too
      }
    }
    for (auto const* range = all.mixed().oldest(); range; range = range->newer) {
      if (may(*range)) return true;
    }
    return false;
  });
}

bool pool_order::wait_for(tag_set const& tags, stream_key const& key) {
  auto& order = key.order();
  for (auto const& use : tags) {
    if (use.order == &order || order.ordered_after(*use.order, use.newest) || use.completed()) continue;
    if (use.order->order_before(order, key.handle(), use.newest) || use.completed()) continue;
    return false;
  }
  return true;
}

} // namespace gpumem::detail
