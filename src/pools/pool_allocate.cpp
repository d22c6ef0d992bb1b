// From a request to memory: by the ladder out of what is free, by growth, behind a wait, and at last by waiting.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:pool_allocate.impl;
import :pool_engine;
import :pool_ladder;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :error;
import :pool_request;
import :ranges;
import :shards;
import :size_class;
import :stream;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

// So often a thread takes what lies in others' shards, for which it stops all of them, before its own grows; where that
// comes once in so many of its calls it is no matter.
inline constexpr unsigned most_borrowings = std::max(sync::patience / 8, 2u);
inline constexpr std::uint64_t rarely = 1024;
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
  if (scarce_.load(std::memory_order_relaxed)) [[unlikely]]
    what.give_up_rounding();
  if (supply_.chunks().limit() && what.bytes > supply_.chunks().limit()) [[unlikely]]
    return refuse(what, outcome::too_large);
  if (door_.load(std::memory_order_relaxed) != door::open) [[unlikely]] {
    if (auto const why = refusal_at_door(what)) return refuse(what, *why);
  }
  try {
    what.key.order().prepare();
  } catch (...) {
    // Without spare events frees leave no evidence until there are some; what the stream frees itself is not touched.
  }
  try {
    if (auto* const p = allocate_near(what)) [[likely]]
      return p;
    return allocate(what);
  } catch (std::bad_alloc const&) { // of the host
    return refuse(what, outcome::exhausted);
  }
}

expected<void*, failure> pool_engine::refuse(pool_request const& what, outcome why) noexcept {
  auto& own = shards_.own();
  auto const held = shards_.enter(own);
  own.counts.failures += what.key.queues() != queueing::admitted;
  return unexpected<failure>{failure{why, 0, what.requested}};
}

expected<void*, failure> pool_engine::allocate(pool_request& what) {
  shard_locks held{shards_};
  if (shards_.crowded() && !has_waiting()) { // while requests wait threads meet anyhow
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
  expected<void*, failure> grown = nullptr;
  bool alone = !shards_.single() && own.borrowings >= most_borrowings && !long_ago(own);
  for (bool searching = true; searching;) {
    if (deferred_) serve_deferred(&what.key);
    if (auto* const p = alone ? reuse_alone(what) : reuse_now(what)) return p;
    grown = grow(what, held, false);
    if (grown && *grown) return grown;
    bool const others_were_faster = grown.has_value();
    searching = others_were_faster || alone;
    alone = alone && others_were_faster;
  }
  what.cannot_grow = true;
  what.give_up_rounding();
  bool const kept_till_now = magazines_.allowed();
  set_pressure(true);
  sweep();
  if (kept_till_now) wait_for_put_out(held);
  if (auto* const p = reuse_now(what)) return p;
  if (auto const place = ladder_.behind_wait(what, shard_list::from{shards_, own})) return grant(what, place);
  if (grown.error().what != outcome::device_lost) {
    // Pages are given up one by one, so at once; chunks all, so last.
    if (supply_.paged() && (grown = grow_in_place(what, held))) return grown;
    if (what.key.may_wait()) {
      if (auto* const p = drain(what, held)) return p;
    }
    if ((grown = grow_in_place(what, held))) return grown;
  }
  own.counts.failures += what.key.queues() != queueing::admitted;
  if (lost()) return unexpected<failure>{failure{outcome::device_lost, where()->loss(), what.requested}};
  return grown;
}

// What has made way for others near a thread is in no list until it arrives.
void pool_engine::wait_for_put_out(shard_locks& held) {
  auto const on_the_way = [&] {
    bool any = false;
    supply_.chunks().visit([&](chunk const& home) {
      range_map::visit(home, [&](block const& each) { any |= each.now() == block_state::put_out; });
    });
    return any;
  };
  ++awaiting_;
  while (on_the_way()) held.wait(arrived_);
  --awaiting_;
}

// Memory from upstream, granted; null where others were faster: look again.
expected<void*, failure> pool_engine::grow(pool_request const& what, shard_locks& held, bool exact) {
  if (supply_.wait_for_growth(held)) return nullptr;
  try {
    auto const drawn = supply_.grow(what, held, exact);
    if (!drawn) return unexpected<failure>{drawn.error()};
    auto* const granted = *drawn ? grant(what, *drawn) : nullptr;
    tell_waiting();
    sweep_beyond_threshold();
    return granted;
  } catch (...) {
    sweep_beyond_threshold();
    throw;
  }
}

// Growth in the place of what nobody uses.
expected<void*, failure> pool_engine::grow_in_place(pool_request const& what, shard_locks& held) {
  if (auto const place = supply_.move_at_limit(what, held)) return grant(what, place);
  supply_.give_back_for(what, held);
  for (;;) {
    auto const grown = grow(what, held, true);
    if (!grown || *grown) return grown;
    if (auto* const p = reuse_now(what)) return p;
  }
}

// Out of the thread's own shard, where nothing calls for all of them. While it is the only one, looking further is for
// the way with all locks, which is as short then.
[[gnu::always_inline]] void* pool_engine::allocate_near(pool_request& what) {
  what.own = shards_.quiet_own(what.me);
  if (!what.own || !magazines_.prepared(what.me)) [[unlikely]]
    return nullptr;
  auto& own = *what.own;
  auto const held = shards_.enter(own);
  if (!calm_for(what.key.order())) [[unlikely]]
    return nullptr;
  take_in(own);
  shard_span const among{&what.own, 1};
  auto const place = shards_.single() ? ladder_.known(what, among) : ladder_.find(what, among);
  if (!place) [[unlikely]]
    return nullptr;
  auto* const p = grant(what, place);
  ++own.paths.locked_calls;
  return p;
}

void* pool_engine::grant(pool_request const& what, pool_place place) {
  auto& from = *place.range->home->shard;
  auto& taken = take(what, place);
  taken.requested = what.requested;
  taken.stream = &what.key.order();
  taken.stack = what.stack;
  ++from.live_blocks;
  count_live(from, static_cast<std::int64_t>(what.requested), magazines_.not_live_of(what.me));
  if (&from != what.own) [[unlikely]]
    note_borrowing(*what.own);
  ++from.counts.allocations;
  if (place.how != rung::none) [[likely]]
    ++(from.counts.*reuses[static_cast<std::size_t>(place.how)]);
  return taken.pointer();
}

// A small block out of a large range comes with some others for those who ask next.
[[gnu::always_inline]] block& pool_engine::take(pool_request const& what, pool_place place) {
  auto& from = *place.range->home->shard;
  if (place.range->now() == block_state::spare) {
    from.ranges.take_spare(*place.range);
    ++from.paths.spare_hits;
    return *place.range;
  }
  if (supply_.growth().lies_at_end(what.bytes, from)) [[unlikely]]
    place.offset = last_fit(*place.range, what.bytes, what.alignment);
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

void pool_engine::count_live_of_many(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept {
  auto const slack = supply_.chunks().reserved() / (live_parts * shards_.all().size());
  live_.count(in.live, change, nearby, static_cast<std::int64_t>(slack));
}

// What is free, and then what threads have kept.
void* pool_engine::reuse_now(pool_request const& what) {
  take_in_all();
  do {
    if (auto const place = ladder_.find(what, shard_list::from{shards_, *what.own})) return grant(what, place);
  } while (sweep());
  return nullptr;
}

// A thread that borrows too often would rather have a chunk that nobody uses, or a new one, for its own shard. Its
// small blocks stay apart: to join them here halved the speed of threads that allocate what others free.
void* pool_engine::reuse_alone(pool_request const& what) {
  what.own->borrowings = 0;
  auto place = ladder_.find(what, {&what.own, 1});
  if (!place) place = supply_.adopt(what);
  return place ? grant(what, place) : nullptr;
}

} // namespace gpumem::detail
