// From a request to memory: own stream, ordered before, completed, growth, wait, and then the end of the ladder.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
module gpumem:pool_allocate.impl;
import :pool_engine;
import :pool_order;
import :block;
import :chunks;
import :cuda;
import :driver;
import :error;
import :page_growth;
import :pool_request;
import :ranges;
import :shards;
import :shelf;
import :size_class;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

// So often a thread takes what lies in others' shards, for which it stops all of them, before its own grows; where that
// comes once in so many of its calls it is no matter.
inline constexpr unsigned most_borrowings = std::max(sync::patience / 8, 2u);
inline constexpr std::uint64_t rarely = 1024;
// A range of more than so many times what was asked for fits loosely: on a recorded trace of six streams looking
// further then raised what was in use of what was reserved from a half to three quarters.
inline constexpr std::size_t loose = 2;
// So exact is the peak of what is live where threads have shards: to a sixteenth of what is reserved. With 1/512 for
// each shard two threads took a third of their time telling each other of it.
inline constexpr std::size_t live_parts = 16;

// Counted for each rung.
inline constexpr std::array<std::uint64_t figures::*, 4> reuses{&figures::reuse_own, &figures::reuse_ordered,
                                                                &figures::reuse_completed, &figures::reuse_waited};

bool long_ago(pool_shard const& borrower) noexcept {
  return borrower.paths.locked_calls - borrower.borrowed_at > rarely;
}

} // namespace

expected<void*, failure> pool_engine::allocate_shared(stream_key const& key, size_class size, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
  pool_request what{key, bytes, size.bytes, size.number, std::max(alignment, granule), sync::thread_number()};
  if (scarce_.load(std::memory_order_relaxed)) what.give_up_rounding();
  if (chunks_.limit() && what.bytes > chunks_.limit()) return refuse(what, outcome::too_large);
  try {
    what.key.order().prepare();
  } catch (...) {
    // Without spare events frees leave no evidence until there are some; what the stream frees itself is not touched.
  }
  try {
    if (auto* const p = allocate_near(what)) return p;
    return allocate(what);
  } catch (std::bad_alloc const&) { // of the host
    return refuse(what, outcome::exhausted);
  }
}

expected<void*, failure> pool_engine::refuse(pool_request const& what, outcome why) noexcept {
  auto& own = shards_.own();
  auto const held = shards_.enter(own);
  ++own.counts.failures;
  return unexpected<failure>{failure{why, 0, what.requested}};
}

expected<void*, failure> pool_engine::allocate(pool_request& what) {
  shard_locks held{shards_};
  if (shards_.crowded()) {
    shards_.spread();
    set_caching();
    for (auto const& each : shards_.all()) live_.tell(each->live);
  }
  what.own = &shards_.own();
  auto& own = *what.own;
  ++own.paths.locked_calls;
  own.paths.all_locked += !shards_.single();
  note_stream(what.key.order());
  magazines_.prepare(what.me);
  expected<void*, failure> result = nullptr;
  bool alone = !shards_.single() && own.borrowings >= most_borrowings && !long_ago(own);
  for (bool searching = true; searching;) {
    if (deferred_) serve_deferred();
    if (auto* const p = alone ? reuse_alone(what) : reuse_now(what)) return p;
    auto const grown = grow(what, held, false, result);
    if (grown == growth_result::granted) return result;
    searching = grown == growth_result::changed || alone;
    if (grown == growth_result::failed) alone = false;
  }
  what.cannot_grow = true;
  what.give_up_rounding();
  own.looks.note_refusal();
  bool const kept_till_now = magazines_.allowed();
  set_pressure(true);
  sweep();
  if (kept_till_now) wait_for_put_out(held);
  if (auto* const p = reuse_now(what)) return p;
  if (auto* const p = reuse_behind_wait(what)) return p;
  if (result.error().what != outcome::device_lost) {
    // Pages are given up one by one, so at once; chunks all, so last.
    if (upstream_->paged() && grow_in_place(what, held, result)) return result;
    if (auto* const p = drain(what, held)) return p;
    if (grow_in_place(what, held, result)) return result;
  }
  ++own.counts.failures;
  if (lost()) return unexpected<failure>{failure{outcome::device_lost, device_->loss(), what.requested}};
  return result;
}

// What has made way for others near a thread is in no list until it arrives.
void pool_engine::wait_for_put_out(shard_locks& held) {
  auto const on_the_way = [&] {
    bool any = false;
    chunks_.visit([&](chunk const& home) {
      range_map::visit(home, [&](block const& each) { any |= each.now() == block_state::put_out; });
    });
    return any;
  };
  ++awaiting_;
  while (on_the_way()) held.wait(changed_);
  --awaiting_;
}

// Growth in the place of what nobody uses.
bool pool_engine::grow_in_place(pool_request const& what, shard_locks& held, expected<void*, failure>& result) {
  if (upstream_->paged()) {
    while (growing_) held.wait(changed_); // pages are looked at only at rest
    make_way(what, growth_.missing(what, *what.own, true), held);
  } else {
    give_back(0, held);
  }
  auto grown = growth_result::changed;
  while ((grown = grow(what, held, true, result)) == growth_result::changed) {
    if (auto* const p = reuse_now(what)) {
      result = p;
      return true;
    }
  }
  return grown == growth_result::granted;
}

// Out of the thread's own shard, where nothing calls for all of them. While it is the only one, looking further is for
// the way with all locks, which is as short then.
[[gnu::always_inline]] void* pool_engine::allocate_near(pool_request& what) {
  what.own = shards_.quiet_own(what.me);
  if (!what.own || !magazines_.prepared(what.me)) return nullptr;
  auto& own = *what.own;
  auto const held = shards_.enter(own);
  if (!calm_for(what.key.order())) return nullptr;
  take_in(own);
  shard_span const among{&what.own, 1};
  void* p = reuse_best(what, place_at_once(what, own.ranges.by_order()), among);
  if (!p && !shards_.single()) p = reuse_learning(what, among);
  if (p) ++own.paths.locked_calls;
  return p;
}

// Of what the stream itself has freed and of what nobody uses, whichever fits better; the stream's own where memory is
// spent.
[[gnu::always_inline]] pool_place pool_engine::place_at_once(pool_request const& what, shelves& all) {
  auto* const own = order_.by_host(what.key) ? nullptr : all.find(what.key.order());
  if (what.is_small()) {
    if (auto* const spare = own ? own->spans().last(what.bytes) : nullptr) return {spare, 0, rung::own};
    if (auto* const spare = all.common().spans().last(what.bytes)) return {spare, 0, rung::completed};
  }
  std::size_t own_offset = 0, offset = 0;
  auto* const mine = own ? own->bins().find(what.bytes, what.alignment, own_offset) : nullptr;
  bool const good = mine && (mine->bytes == what.bytes || growth_.is_generous(*what.own));
  if (good || all.common().empty()) return {mine, own_offset, rung::own};
  auto* const free = all.common().bins().find(what.bytes, what.alignment, offset);
  if (free && (!mine || free->bytes < mine->bytes)) return {free, offset, rung::completed};
  return {mine, own_offset, rung::own};
}

pool_place pool_engine::place_at_once(pool_request const& what, shard_span among) {
  for (auto* const each : among) {
    if (auto const place = place_at_once(what, each->ranges.by_order()); place.range) return place;
  }
  return {};
}

// The smallest range of the cheapest rung, of what other streams have freed, or several.
pool_place pool_engine::place_elsewhere(pool_request const& what, rung furthest, shard_span among) {
  pool_place best;
  auto const look = [&](block& range) {
    std::size_t offset = 0;
    if (!fits(range, what.bytes, what.alignment, offset)) return;
    auto const how = order_.classify(range.tags, what.key, furthest);
    if (how > best.how || how == rung::none) return;
    if (how == best.how && best.range && range.bytes >= best.range->bytes) return;
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

void* pool_engine::grant(pool_request const& what, pool_place const& place) {
  auto& from = *place.range->home->shard;
  auto& taken = take(what, place);
  taken.requested = what.requested;
  taken.stream = &what.key.order();
  taken.stack = what.stack;
  ++from.live_blocks;
  count_live(from, static_cast<std::int64_t>(what.requested), magazines_.not_live_of(what.me));
  if (&from != what.own) note_borrowing(*what.own);
  ++from.counts.allocations;
  if (place.how != rung::none) ++(from.counts.*reuses[static_cast<std::size_t>(place.how)]);
  return taken.pointer();
}

// A small block out of a large range comes with some others for those who ask next.
[[gnu::always_inline]] block& pool_engine::take(pool_request const& what, pool_place const& place) {
  auto& from = *place.range->home->shard;
  if (place.range->now() == block_state::spare) {
    from.ranges.take_spare(*place.range);
    ++from.paths.spare_hits;
    return *place.range;
  }
  bool const span = calm_ && what.is_small() && place.range->bytes >= range_map::least_for_span * what.bytes;
  return span ? from.ranges.take_span(*place.range, what.bytes)
              : from.ranges.take(*place.range, place.offset, what.bytes);
}

void pool_engine::note_borrowing(pool_shard& by) noexcept {
  ++by.paths.borrowed;
  if (long_ago(by)) by.borrowings = 0;
  ++by.borrowings;
  by.borrowed_at = by.paths.locked_calls;
}

void* pool_engine::grant_fresh(pool_request const& what, block& fresh) {
  pool_place place{&fresh, 0, rung::none};
  fits(fresh, what.bytes, what.alignment, place.offset);
  return grant(what, place);
}

void pool_engine::count_live_of_many(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept {
  auto const slack = chunks_.reserved() / (live_parts * shards_.all().size());
  live_.count(in.live, change, nearby, static_cast<std::int64_t>(slack));
}

void* pool_engine::reuse_at_once(pool_request const& what, shard_span among) {
  auto const place = place_at_once(what, among);
  return place.range ? grant(what, place) : nullptr;
}

// The rungs that cost the stream nothing, as things are known.
void* pool_engine::reuse_known(pool_request const& what, shard_span among) {
  if (std::ranges::none_of(among, [&](auto* each) { return each->ranges.free_bytes() >= what.bytes; })) return nullptr;
  return reuse_best(what, place_at_once(what, among), among);
}

// What is there at once, unless something else fits better.
[[gnu::always_inline]] void* pool_engine::reuse_best(pool_request const& what, pool_place const& at_once,
                                                     shard_span among) {
  if (!at_once.range) return reuse_elsewhere(what, among);
  // No place is copied: what was just written word by word is not read at twice the width before it has left the
  // processor's buffers.
  if (fits_loosely(what, at_once) && completion_found(what, among)) return grant(what, place_at_once(what, among));
  return grant(what, at_once);
}

// Neither the stream itself nor nobody has left anything that would do.
void* pool_engine::reuse_elsewhere(pool_request const& what, shard_span among) {
  if (auto const place = place_elsewhere(what, rung::ordered, among); place.range) return grant(what, place);
  return order_.give_completed(among) ? reuse_at_once(what, among) : nullptr;
}

// Then after one look at what has completed.
void* pool_engine::reuse_in(pool_request const& what, shard_span among) {
  auto* const p = reuse_known(what, among);
  return p ? p : reuse_learning(what, among);
}

// Near the limit everything but a good fit is too much.
bool pool_engine::fits_loosely(pool_request const& what, pool_place const& place) const noexcept {
  if (what.own->ranges.by_order().own().size() <= 1) return false;
  return (chunks_.scarce() ? place.range->bytes : place.range->bytes / loose) > what.bytes;
}

// A large range is about to be cut for a small request: where others have freed memory, something may fit better once
// their completion is known. After looks of which nothing came, or that came too early, the next are left out, ever
// more.
bool pool_engine::completion_found(pool_request const& what, shard_span among) {
  auto& own = *what.own;
  if (options_.cross_stream == reuse::own || growth_.is_generous(own)) return false;
  if (own.looks.leave_out()) return false;
  auto const looked = order_.learn_completion(&what.key, among);
  bool const found = order_.give_completed(among);
  own.looks.note(looked, own.paths.locked_calls);
  own.looks.note_better_fit(found && looked.early == 0);
  return found;
}

// Then the same with what threads have kept.
void* pool_engine::reuse_now(pool_request const& what) {
  take_in_all();
  do {
    if (auto* const p = reuse_in(what, shard_list::from{shards_, *what.own})) return p;
  } while (sweep());
  return nullptr;
}

// A thread that borrows too often would rather have a chunk that nobody uses, or a new one, for its own shard. Its
// small blocks stay apart: to join them here halved the speed of threads that allocate what others free.
void* pool_engine::reuse_alone(pool_request const& what) {
  what.own->borrowings = 0;
  if (auto* const p = reuse_in(what, {&what.own, 1})) return p;
  auto const place = adopt_chunk(what);
  return place.range ? grant(what, place) : nullptr;
}

void* pool_engine::reuse_learning(pool_request const& what, shard_span among) {
  if (growth_.to_be_spent(what) > 0) return nullptr;
  what.own->looks.note(order_.learn_completion(&what.key, among), what.own->paths.locked_calls);
  order_.give_completed(among);
  order_.join_free(what.key, rung::completed, among);
  if (auto* const p = reuse_at_once(what, among)) return p;
  auto const place = place_elsewhere(what, rung::completed, among);
  return place.range ? grant(what, place) : nullptr;
}

void* pool_engine::reuse_behind_wait(pool_request const& what) {
  if (options_.cross_stream != reuse::wait || what.key.is_host() || !what.key.has_handle()) return nullptr;
  shard_list::from const all{shards_, *what.own};
  order_.join_free(what.key, rung::wait, all);
  auto place = place_at_once(what, all);
  if (!place.range) place = place_elsewhere(what, rung::wait, all);
  if (!place.range || !pool_order::wait_for(place.range->tags, what.key)) return nullptr;
  return grant(what, place);
}

} // namespace gpumem::detail
