// What a pool knows of the order of its free memory, and how it learns more.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>
module gpumem:pool_order.impl;
import :pool_engine;
import :block;
import :chunks;
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

// An event that was recorded behind nothing completes sooner: within some 5 us on an H200.
inline constexpr sync::duration long_work = std::chrono::microseconds{2};

} // namespace

// With `own`, memory stays with the streams that freed it, even when the host has seen them complete.
void pool_engine::prune(tag_set& tags) const noexcept {
  if (options_.cross_stream != reuse::own) tags.prune();
}

// What the host has seen complete belongs to nobody from now on, and joins what belongs to nobody. Each range comes by
// once, from the oldest on. Whether there was any.
bool pool_engine::give_completed(shard_span among) noexcept {
  if (options_.cross_stream == reuse::own) return false;
  bool any = false;
  for (auto* const shard : among) {
    auto const before = shard->paths.completed;
    give_completed(*shard);
    any = any || shard->paths.completed != before;
  }
  return any;
}

void pool_engine::give_completed(pool_shard& in) noexcept {
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
    in.ranges.prune(looked_at);
    ++in.paths.completed;
  }
}

// Joins free neighbours that the stream may use by these rungs. Across streams this happens only for a request that
// would else fail: a range joined early is lost to each of its streams until the others are done.
void pool_engine::join_free(stream_key const& key, rung furthest, shard_span among) {
  for (auto* const shard : among) {
    shard->ranges.join_all([&](block const& b) { return classify(b.tags, key, furthest) != rung::none; });
  }
}

// One poll of every stream whose frees stand in the way. Where there is no evidence yet it is recorded, late, on
// streams that are gpumem's or the asking one; the others are asked for it. How many are at long work: the look came
// early for them, and so will the next.
unsigned pool_engine::learn_completion(stream_key const* asking, shard_span among) {
  bool const host = host_accessible_ || (asking && asking->is_host());
  if (options_.cross_stream == reuse::own && asking && !host) return 0;
  for (auto* const order : open_timelines(true, among)) {
    bool const itself = asking && &asking->order() == order;
    if (itself && !host) continue; // what a stream has freed it may use as it is
    if (order->owns_handle()) {
      order->record_late(order->handle());
    } else if (itself && asking->has_handle()) {
      order->record_late(asking->handle());
    } else {
      order->ask();
    }
  }
  auto const long_ago = sync::now() - long_work;
  unsigned early = 0;
  for (auto* const order : open_timelines(false, among)) {
    auto const open_since = order->poll();
    early += open_since && *open_since < long_ago;
  }
  return early;
}

// The streams whose uses of free memory the host has not seen complete, each once.
std::vector<timeline*> pool_engine::open_timelines(bool without_evidence, shard_span among) {
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

} // namespace gpumem::detail
