// From a request to memory: own stream, ordered before, completed, growth, wait, and then the end of the ladder.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <vector>
module gpumem:pool_allocate.impl;
import :pool_engine;
import :chunks;
import :cuda;
import :driver;
import :error;
import :ranges;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {

expected<void*, failure> pool_engine::try_allocate(stream_key const& key, std::size_t bytes,
                                                   std::size_t alignment) noexcept {
  auto const refuse = [&](outcome why) {
    sync::lock const held{guard_};
    ++counts_.failures;
    return unexpected<failure>{failure{why, 0, bytes}};
  };
  auto const granted = (bytes + granule - 1) / granule * granule;
  if (chunks_.limit() && granted > chunks_.limit()) return refuse(outcome::too_large);
  try {
    key.order().prepare();
  } catch (...) {
    // Without spare events frees leave no evidence until there are some; what the stream frees itself is not touched.
  }
  try {
    return allocate({key, bytes, granted, std::max(alignment, granule)});
  } catch (std::bad_alloc const&) { // of the host
    return refuse(outcome::exhausted);
  }
}

expected<void*, failure> pool_engine::allocate(pool_request const& what) {
  sync::lock held{guard_};
  note_stream(what.key.order());
  expected<void*, failure> result = nullptr;
  for (bool searching = true; searching;) {
    serve_deferred();
    if (auto* const p = reuse_now(what)) return p;
    auto const grown = grow(what, held, false, result);
    if (grown == growth_result::granted) return result;
    searching = grown == growth_result::changed;
  }
  pressure_ = true;
  if (auto* const p = reuse_behind_wait(what)) return p;
  if (result.error().what != outcome::device_lost) {
    if (auto* const p = drain(what, held)) return p;
    give_back(0, held);
    auto grown = growth_result::changed;
    while ((grown = grow(what, held, true, result)) == growth_result::changed) {
      if (auto* const p = reuse_now(what)) return p;
    }
    if (grown == growth_result::granted) return result;
  }
  ++counts_.failures;
  if (device_.lost()) return unexpected<failure>{failure{outcome::device_lost, device_.loss(), what.requested}};
  return result;
}

// The host, and streams of a pool whose memory the host may touch, need what is complete; a wait on a stream is no
// help.
rung pool_engine::classify(tag_set const& tags, stream_key const& key) const {
  if (key.is_host() || upstream_->host_accessible()) return tags.completed() ? rung::completed : rung::none;
  if (tags.empty()) return rung::completed;
  auto furthest = rung::own;
  for (auto const& use : tags) {
    auto how = rung::none;
    if (use.order == &key.order()) {
      how = rung::own;
    } else if (key.order().ordered_after(*use.order, use.newest)) {
      how = rung::ordered;
    } else if (options_.cross_stream != reuse::own && use.completed()) {
      how = rung::completed;
    } else if (options_.cross_stream == reuse::wait && use.precise && key.has_handle()) {
      how = rung::wait;
    }
    furthest = std::max(furthest, how);
  }
  return furthest;
}

// The smallest range of the cheapest rung.
pool_place pool_engine::best_place(pool_request const& what, rung furthest) {
  pool_place best;
  for (auto at = ranges_.at_least(what.bytes); at != ranges_.by_size().end(); ++at) {
    std::size_t offset = 0;
    if (!fits(**at, what.bytes, what.alignment, offset)) continue;
    auto const how = classify((*at)->tags, what.key);
    if (how > furthest || how >= best.how) continue;
    best = {*at, offset, how};
    if (how == rung::own) break;
  }
  return best;
}

void* pool_engine::grant(pool_request const& what, pool_place const& place) {
  auto& taken = ranges_.take(*place.range, place.offset, what.bytes);
  taken.requested = what.requested;
  taken.stream = &what.key.order();
  counts_.live += what.requested;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  ++counts_.allocations;
  return taken.pointer();
}

// The rungs that cost the stream nothing: first as things are known, then after one look at what has completed.
void* pool_engine::reuse_now(pool_request const& what) {
  auto place = best_place(what, rung::completed);
  if (!place.range && ranges_.largest_run() >= what.bytes) {
    learn_completion(&what.key);
    join_free(what.key, rung::completed);
    place = best_place(what, rung::completed);
  }
  if (!place.range) return nullptr;
  auto* const p = grant(what, place);
  auto& count = place.how == rung::own       ? counts_.reuse_own
                : place.how == rung::ordered ? counts_.reuse_ordered
                                             : counts_.reuse_completed;
  ++count;
  return p;
}

// Joins free neighbours that the stream may use by these rungs. Across streams this happens only for a request that
// would else fail: a range joined early is lost to each of its streams until the others are done.
void pool_engine::join_free(stream_key const& key, rung furthest) {
  for (auto* const each : ranges_.by_size()) prune(each->tags);
  counts_.joins += ranges_.join_all([&](block const& b) { return classify(b.tags, key) <= furthest; });
}

// One poll of every stream whose frees stand in the way. Where there is no evidence yet it is recorded, late, on
// streams that are gpumem's or the asking one; the others are asked for it.
void pool_engine::learn_completion(stream_key const* asking) {
  bool const by_host = upstream_->host_accessible() || (asking && asking->is_host());
  if (options_.cross_stream == reuse::own && asking && !by_host) return;
  for (auto* const order : open_timelines(true)) {
    bool const itself = asking && &asking->order() == order;
    if (itself && !by_host) continue; // what a stream has freed it may use as it is
    if (order->owns_handle()) {
      order->record_late(order->handle());
    } else if (itself && asking->has_handle()) {
      order->record_late(asking->handle());
    } else {
      order->ask();
    }
  }
  for (auto* const order : open_timelines(false)) order->poll();
}

void* pool_engine::reuse_behind_wait(pool_request const& what) {
  if (options_.cross_stream != reuse::wait || what.key.is_host() || !what.key.has_handle()) return nullptr;
  join_free(what.key, rung::wait);
  for (;;) {
    auto const place = best_place(what, rung::wait);
    if (!place.range) return nullptr;
    bool const waits = place.how == rung::wait;
    // A range whose evidence has gone is told so in its tags and does not come up again.
    if (waits && !wait_for(place.range->tags, what.key)) continue;
    auto* const p = grant(what, place);
    ++(waits ? counts_.reuse_waited : counts_.reuse_completed);
    return p;
  }
}

// Orders the stream after every use that it is not ordered after. False: some evidence was lost and its tag demoted.
bool pool_engine::wait_for(tag_set& tags, stream_key const& key) {
  for (auto const& use : tags) {
    auto& order = key.order();
    if (use.order == &order || order.ordered_after(*use.order, use.newest) || use.completed()) continue;
    if (use.order->order_before(order, key.handle(), use.newest) || use.completed()) continue;
    auto const lost = use;
    tags.remove(*lost.order);
    tags.add({lost.order, lost.newest, false});
    return false;
  }
  return true;
}

// The streams whose uses of free memory the host has not seen complete, each once.
std::vector<timeline*> pool_engine::open_timelines(bool without_evidence) {
  std::vector<timeline*> found;
  for (auto const* const each : ranges_.by_size()) {
    for (auto const& use : each->tags) {
      if (use.completed() || (without_evidence && use.has_evidence())) continue;
      if (std::ranges::find(found, use.order) == found.end()) found.push_back(use.order);
    }
  }
  return found;
}

} // namespace gpumem::detail
