// Decides which stream may use free memory; polls, or waits on the host, to learn which uses are complete.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:reuse_rules.impl;
import :reuse_rules;
import :backoff;
import :block;
import :cuda;
import :device;
import :driver;
import :pool_shard;
import :range_allocator;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

// Promotes the complete ranges of one shard: moves them to the list of ranges that any stream can take. Visits each
// range once, from the oldest to the newest.
GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) void promote_completed_in(pool_shard& shard) noexcept {
  auto& lists = shard.ranges.lists();
  for (auto* const each : lists.single_stream()) {
    auto const& timeline = *each->timeline();
    while (each->oldest() && timeline.completed(each->oldest()->uses.begin()->newest)) {
      shard.ranges.free_ranges().mark_complete(*each->oldest());
      ++shard.counters.promoted;
    }
  }
  for (auto* range = lists.multi_stream().oldest(); range;) {
    auto& visited = *range;
    range = range->newer;
    if (std::ranges::none_of(visited.uses, &stream_use::completed)) continue;
    if (range && range == visited.upper) range = range->newer; // prune() may join `range` to `visited`
    shard.ranges.free_ranges().prune(visited);
    ++shard.counters.promoted;
  }
}

} // namespace

// A tier is a rule by which a stream may get free memory. Returns the cheapest tier by which a request with `key` can
// get memory with these uses; none if that tier would be beyond `last_tier`. A request of the host needs memory whose
// uses are all complete. So does a request of a stream if the host may touch the memory once it is allocated: a wait on
// a stream does not stop the host.
reuse_tier reuse_rules::classify(stream_uses const& uses, stream_key const& key, reuse_tier last_tier) const {
  if (needs_host(key)) return uses.completed() ? reuse_tier::completed : reuse_tier::none;
  if (uses.empty()) return reuse_tier::completed;
  auto tier = reuse_tier::same_stream;
  for (auto const& use : uses) {
    auto worst_tier = reuse_tier::none;
    if (use.timeline == &key.identity().timeline()) {
      worst_tier = reuse_tier::same_stream;
    } else if (key.identity().timeline().ordered_after(*use.timeline, use.newest)) {
      worst_tier = reuse_tier::ordered;
    } else if (cross_stream_ && use.completed()) {
      worst_tier = reuse_tier::completed;
    } else if (last_tier == reuse_tier::wait && use.timeline->waitable(use.newest)) {
      worst_tier = reuse_tier::wait;
    }
    tier = std::max(tier, worst_tier);
    if (tier > last_tier) return reuse_tier::none;
  }
  return tier;
}

bool reuse_rules::promote_completed(shard_span shards) noexcept {
  if (!cross_stream_) return false;
  bool any = false;
  for (auto* const shard : shards) {
    auto const before = shard->counters.promoted;
    promote_completed_in(*shard);
    any = any || shard->counters.promoted != before;
  }
  return any;
}

void reuse_rules::coalesce_usable(stream_key const& key, reuse_tier last_tier, shard_span shards) {
  for (auto* const shard : shards) {
    shard->ranges.free_ranges().coalesce_all(
        [&](block const& b) { return classify(b.uses, key, last_tier) != reuse_tier::none; });
  }
}

std::size_t reuse_rules::poll_streams(stream_key const* asking, shard_span shards) {
  bool const host = host_accessible_ || (asking && asking->identity().is_host());
  if (!cross_stream_ && asking && !host) return 0;
  auto const* const asker = asking ? &asking->identity().timeline() : nullptr;
  for (auto* const timeline : streams_in_use(true, shards)) {
    if (timeline == asker && !host) continue; // the asking stream needs no event for its own frees
    timeline->cover(timeline == asker && asking->identity().has_handle() ? std::optional{asking->identity().handle()}
                                                                         : std::nullopt);
  }
  auto const open = streams_in_use(false, shards);
  for (auto* const timeline : open) timeline->poll();
  return open.size();
}

void reuse_rules::poll_young_events(stream_key const* asking, shard_span shards) {
  auto* const asker = asking ? &asking->identity().timeline() : nullptr;
  if (asker && asking->identity().has_handle() && !asker->has_event()) asker->cover(asking->identity().handle());
  poll_streams(nullptr, shards);
  auto open = streams_in_use(false, shards);
  auto const begin = sync::now();
  while (!open.empty() && !(asker && asker->is_behind()) && sync::now() - begin < tuning::max_young_poll_time) {
    std::erase_if(open, [](stream_timeline* each) { return each->is_behind() || !each->poll(); });
  }
}

std::vector<stream_timeline*> reuse_rules::streams_in_use(bool without_event, shard_span shards) {
  std::vector<stream_timeline*> timelines;
  for (auto* const shard : shards) {
    auto& all = shard->ranges.lists();
    for (auto const* const each : all.single_stream()) {
      if (each->in_use(without_event)) timelines.push_back(each->timeline());
    }
    for (auto const* range = all.multi_stream().oldest(); range; range = range->newer) {
      for (auto const& use : range->uses) {
        if (!use.completed() && !(without_event && use.has_event())) timelines.push_back(use.timeline);
      }
    }
  }
  std::ranges::sort(timelines, {}, &stream_timeline::index);
  auto const [first, last] = std::ranges::unique(timelines);
  timelines.erase(first, last);
  return timelines;
}

bool reuse_rules::may_complete(shard_span shards) noexcept {
  auto const may = [](block const& range) { return std::ranges::any_of(range.uses, &stream_use::may_complete); };
  return std::ranges::any_of(shards, [&](pool_shard* shard) {
    assert_shard_held();
    auto& lists = shard->ranges.lists();
    for (auto const* const each : lists.single_stream()) {
      for (auto const* range = each->newest(); range; range = range->older) {
        if (may(*range)) return true;
        if (range->uses.completed()) break; // older ranges are complete too
      }
    }
    for (auto const* range = lists.multi_stream().oldest(); range; range = range->newer) {
      if (may(*range)) return true;
    }
    return false;
  });
}

bool reuse_rules::wait_for(stream_uses const& uses, stream_key const& key) {
  auto& timeline = key.identity().timeline();
  for (auto const& use : uses) {
    if (use.timeline == &timeline || timeline.ordered_after(*use.timeline, use.newest) || use.completed()) continue;
    if (use.timeline->insert_wait(timeline, key.identity().handle(), use.newest) || use.completed()) continue;
    return false;
  }
  return true;
}

namespace {

// The goal of one stream: the host must see the stream's work complete up to the epoch `newest` (the number of an
// event).
struct goal {
  stream_timeline* timeline;
  epoch newest;
  bool all; // whether `newest` covers all frees on the stream so far
};

goal goal_of(stream_timeline& timeline) noexcept {
  if (!timeline.is_mortal()) return {&timeline, timeline.current_epoch(), true};
  bool const all = !timeline.lacks_event();
  if (!all) timeline.cover_request().raise();
  return {&timeline, timeline.newest_recorded(), all};
}

bool reached(goal const& goal) noexcept {
  auto& timeline = *goal.timeline;
  if (!timeline.completed(goal.newest) && timeline.newest_recorded() < goal.newest) timeline.cover(std::nullopt);
  timeline.poll();
  return timeline.completed(goal.newest);
}

bool is_lost(goal const& goal) {
  auto const ordinal = goal.timeline->device();
  return ordinal >= 0 && device{ordinal}.lost();
}

} // namespace

bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept {
  auto const deadline = deadline_after(longest);
  try {
    std::vector<goal> open;
    for (auto* const timeline : timelines) open.push_back(goal_of(*timeline));
    bool const all = std::ranges::all_of(open, &goal::all);
    for (backoff pause{tuning::max_poll_pause};;) {
      std::erase_if(open, reached);
      if (open.empty()) return all;
      if (!driver_alive() || std::ranges::any_of(open, is_lost) || sync::now() >= deadline) return false;
      sync::sleep_for(pause.next());
    }
  } catch (...) { // the host is out of memory
    return false;
  }
}

} // namespace gpumem::detail
