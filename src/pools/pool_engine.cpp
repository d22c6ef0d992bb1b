// A pool's beginning, what its owner asks of its memory, its figures, and what it knows of a pointer.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:pool_engine.impl;
import :pool_engine;
import :block;
import :chunks;
import :error;
import :executor;
import :live_meter;
import :magazines;
import :ranges;
import :shards;
import :shelf;
import :pool_ladder;
import :pool_order;
import :pool_supply;
import :sync;
import :tags;
import :timeline;
import :waiter;

namespace gpumem::detail {
namespace {

// With memory that is reserved comes what the first calls would need on the host: 16 streams of short kernels lost 2 %
// of their first 2,000 steps to it.
inline constexpr std::size_t prepared_blocks = 1024, prepared_streams = 16;

// What lies between the guards of a block and beside them is bounded, so that no sum overflows.
void check_hardening(hardening_options const& asked, std::size_t limit) {
  constexpr std::size_t most = std::size_t{1} << 30, most_events = std::size_t{1} << 24;
  hardening_options const usual;
  bool const changed = asked.guard != usual.guard || asked.quarantine != usual.quarantine ||
                       asked.poison != usual.poison || asked.history != usual.history;
  if (!asked.enabled && changed) {
    throw std::invalid_argument{
        "gpumem: a pool that is not hardened has neither guard, quarantine, poison nor history"};
  }
  if (asked.guard > most || asked.poison > most || asked.history > most_events) {
    throw std::invalid_argument{
        "gpumem: a pool's guard and poison must each be 1 GiB at most, and its history 16,777,216 events"};
  }
  if (asked.enabled && limit && limit / granule <= 2 * ((asked.guard + granule - 1) / granule)) {
    throw std::invalid_argument{"gpumem: a hardened pool's limit leaves no room between two guards"};
  }
}

pool_options checked_options(pool_options options, bool paged) {
  if (options.cross_stream > reuse::wait) throw std::invalid_argument{"gpumem: a pool's cross_stream is unknown"};
  if (options.limit && options.initial_size > options.limit) {
    throw std::invalid_argument{"gpumem: a pool's initial_size is larger than its limit"};
  }
  if (options.initial_size > PTRDIFF_MAX) {
    throw std::invalid_argument{"gpumem: a pool's initial_size must be less than half the address space"};
  }
  if (!(options.effort >= 0 && options.effort <= 1)) {
    throw std::invalid_argument{"gpumem: a pool's effort must be between 0 and 1"};
  }
  if (options.stall_timeout < std::chrono::nanoseconds{0}) {
    throw std::invalid_argument{"gpumem: a pool's stall_timeout must not be negative"};
  }
  if (!paged) options.effort = 0; // a chunk moves nowhere
  check_limit(options.limit);
  check_hardening(options.hardened, options.limit);
  return options;
}

void add(figures& sum, figures const& part) noexcept {
  for (auto const each : {&figures::allocations, &figures::frees, &figures::failures, &figures::growths,
                          &figures::releases, &figures::reuse_own, &figures::reuse_ordered, &figures::reuse_completed,
                          &figures::reuse_waited, &figures::reuse_drained}) {
    sum.*each += part.*each;
  }
}

// The bytes on a shelf; what is there must be free, belong there, and come in order.
std::size_t sound_bytes(shelf const& one, bool& sound) {
  std::size_t bytes = 0, found = 0;
  epoch newest = 0;
  for (auto const* each = one.oldest(); each; each = each->newer) {
    sound = sound && each->is_free() && each->place == &one;
    bytes += each->bytes;
    if (!one.order()) continue;
    sound = sound && each->tags.size() == 1 && each->tags.begin()->order == one.order();
    sound = sound && each->tags.begin()->newest >= newest;
    newest = each->tags.begin()->newest;
  }
  one.bins().visit_from(0, [&](block const& each) { found += each.bytes; });
  sound = sound && found == bytes;
  return bytes + one.spans().bytes();
}

} // namespace

pool_engine::pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options)
    : options_{checked_options(std::move(options), upstream->paged())},
      order_{options_.cross_stream, upstream->host_accessible()},
      supply_{std::move(upstream), options_, order_, shards_, *this}, ladder_{options_.cross_stream, order_} {
  library_executor(); // started here, because frees and destructors may not
  revisit_left();
  reserve(options_.initial_size);
}

void check_limit(std::size_t limit) {
  if (limit > PTRDIFF_MAX) {
    throw std::invalid_argument{"gpumem: a pool's limit must be less than half the address space"};
  }
  if (limit && limit < granule) throw std::invalid_argument{"gpumem: a pool's limit must be 256 bytes at least"};
}

std::size_t pool_engine::reserve(std::size_t bytes) {
  auto const fail = [&](failure const& why) { throw_failure({why.what, why.code, bytes}); };
  shard_locks held{shards_};
  auto const limit = supply_.chunks().limit();
  if (bytes > (limit ? limit : PTRDIFF_MAX)) fail({outcome::too_large});
  if (bytes > supply_.chunks().reserved()) {
    shards_.own().ranges.prepare(prepared_blocks, prepared_streams);
    magazines_.prepare(sync::thread_number());
  }
  auto const missing = supply_.grow_to(bytes, shards_.own(), held);
  if (!missing) fail(missing.error());
  if (*missing > 0) sweep_beyond_threshold();
  return *missing;
}

void pool_engine::set_limit(std::size_t bytes) {
  check_limit(bytes);
  called_waiters calls;
  shard_locks const held{shards_};
  supply_.set_limit(bytes);
  set_caching();
  ++changes_;
  call_ended(calls);
  call_next(calls);
}

bool pool_engine::pin(void const* pointer, std::size_t bytes) {
  shard_locks held{shards_};
  return supply_.pin(pointer, bytes, held);
}

void pool_engine::unpin(void const* pointer, std::size_t bytes) {
  called_waiters calls;
  shard_locks held{shards_};
  supply_.unpin(pointer, bytes, held);
  ++changes_;
  call_next(calls);
}

expected<int, failure> pool_engine::export_page(void const* pointer) {
  shard_locks held{shards_};
  return supply_.export_page(pointer, held);
}

std::optional<block_info> pool_engine::find(void const* pointer) {
  shard_locks const held{shards_};
  take_in_all();
  auto const* const home = supply_.chunks().covering(pointer);
  auto const* const found = home ? range_map::covering(*home, pointer) : nullptr;
  if (!found || found->now() == block_state::hole) return std::nullopt;
  if (!found->is_live()) return block_info{found->pointer(), 0, found->bytes, 0, false};
  return block_info{found->pointer(), found->requested, found->bytes, found->stream->id(), true};
}

std::int64_t pool_engine::live_blocks() const noexcept {
  std::int64_t sum = 0;
  for (auto const& each : shards_.all()) sum += each->live_blocks;
  return sum;
}

// Requested.
std::size_t pool_engine::live_bytes() const noexcept {
  auto sum = -magazines_.glance().not_live;
  for (auto const& each : shards_.all()) sum += each->live.bytes;
  return static_cast<std::size_t>(sum);
}

std::size_t pool_engine::free_bytes() const noexcept {
  std::size_t sum = 0;
  for (auto const& each : shards_.all()) sum += each->ranges.free_bytes();
  return sum;
}

// What is free, in how many pieces, and what of it streams still use, as far as is known. `users`: of streams, each as
// often as it uses a range.
void pool_engine::survey(pool_shard& in, figures& f, std::vector<timeline const*>& users) {
  auto const look = [&](block const& free) {
    bool const over = free.tags.completed();
    f.unfinished += over ? 0 : free.bytes;
    for (auto const& use : free.tags) {
      bool const counted = !users.empty() && users.back() == use.order;
      if (!use.completed() && !counted) users.push_back(use.order);
    }
    return over;
  };
  in.ranges.by_order().visit([&](shelf const& one) {
    f.free_ranges += one.size();
    for (auto const* range = one.newest(); range; range = range->older) {
      if (look(*range) && one.order()) break; // what is older is complete too
    }
    one.spans().visit([&](block const& spare) {
      ++f.free_ranges;
      look(spare);
    });
  });
  f.free += in.ranges.free_bytes();
}

// One shard at a time, so that no thread waits for all. While requests wait all calls take all locks anyhow.
figures pool_engine::read_figures() {
  figures f;
  std::int64_t live = 0;
  std::size_t not_free = 0;
  std::vector<timeline const*> users;
  for (auto const& each : shards_.all()) {
    sync::quick_lock const held{each->guard};
    if (calm_) take_in(*each);
    add(f, each->counts);
    live += each->live.bytes;
    not_free += each->reserved - each->ranges.free_bytes();
    f.joins += each->ranges.joins();
    f.joins_refused += each->ranges.refused_joins();
    f.largest_free = std::max(f.largest_free, each->ranges.largest_free());
    survey(*each, f, users);
    f.reserved = supply_.chunks().reserved() + supply_.chunks().leaving();
    f.limit = supply_.chunks().limit();
    f.peak_reserved = supply_.chunks().peak();
  }
  std::ranges::sort(users, {}, &timeline::index);
  f.unfinished_streams = static_cast<std::size_t>(std::ranges::unique(users).begin() - users.begin());
  auto const near = magazines_.glance();
  f.live = static_cast<std::size_t>(std::max(live - near.not_live, std::int64_t{0}));
  f.cached = near.cached();
  f.granted = not_free - std::min(not_free, near.cached());
  f.allocations += near.allocations;
  f.reuse_own += near.allocations;
  f.reuse_near = near.allocations;
  f.frees += near.frees;
  f.peak_live = std::max(f.live, live_.peak());
  if (!has_waiting()) return f;
  shard_locks const held{shards_};
  auto const waiting = queue_.read_figures();
  f.waiting = waiting.requests;
  f.waiting_bytes = waiting.bytes;
  f.oldest_wait_ns = static_cast<std::uint64_t>(waiting.oldest.count());
  return f;
}

pool_paths pool_engine::read_paths() {
  shard_locks const held{shards_};
  pool_paths paths;
  for (auto const& each : shards_.all()) {
    paths.spare_hits += each->paths.spare_hits;
    paths.locked_calls += each->paths.locked_calls;
    paths.all_locked += each->paths.all_locked;
    paths.borrowed += each->paths.borrowed;
    paths.posted += each->paths.posted;
    paths.adopted += each->paths.adopted;
    paths.made_way += each->paths.made_way;
    paths.moved += each->paths.moved;
    paths.swept += each->paths.swept;
    paths.completed += each->paths.completed;
  }
  paths.shards = shards_.all().size();
  auto const near = magazines_.glance();
  paths.near_hits = near.allocations;
  paths.refused = near.refused;
  return paths;
}

bool pool_engine::consistent() {
  shard_locks const held{shards_};
  take_in_all();
  bool sound = false;
  magazines_.look([&](thread_counts const& near) { sound = consistent_with(near); });
  return sound;
}

bool pool_engine::consistent_with(thread_counts const& near) {
  std::size_t free = 0, small = 0, larger = 0, taken = 0;
  std::int64_t live = 0;
  bool sound = true;
  supply_.chunks().visit([&](chunk const& home) {
    auto end = home.base;
    std::size_t not_free = 0;
    block const* lower = nullptr;
    range_map::visit(home, [&](block const& each) {
      // Side by side, without a gap.
      sound = sound && each.base == end && each.lower == lower && each.bytes > 0 && each.bytes % granule == 0;
      sound = sound && each.home == &home && each.tags.size() <= tag_set::most;
      end = each.end();
      lower = &each;
      if (each.now() == block_state::hole) return;
      bool const unused = each.is_free() || each.now() == block_state::spare;
      (unused ? free : taken) += each.bytes;
      not_free += !unused;
      if (!each.is_free()) sound = sound && home.shard->granted_at(each.pointer()) == &each;
      if (each.now() == block_state::cached) (each.bytes <= size_class::largest_small ? small : larger) += each.bytes;
      auto const state = each.now(); // what is posted meanwhile is counted as before
      bool const counted_live =
          state == block_state::granted || state == block_state::put_out || state == block_state::posted;
      if (counted_live) live += static_cast<std::int64_t>(each.requested);
    });
    sound = sound && end == home.end() && lower == home.last && not_free == home.live_blocks;
  });
  std::size_t on_shelves = 0, reserved = 0;
  std::int64_t counted = -near.not_live;
  for (auto const& each : shards_.all()) {
    each->ranges.by_order().visit([&](shelf& one) { on_shelves += sound_bytes(one, sound); });
    reserved += each->reserved;
    counted += each->live.bytes;
  }
  return sound && free == on_shelves && free == free_bytes() && taken + free == supply_.chunks().reserved() &&
         reserved == supply_.chunks().reserved() && small == near.kept[size_class::small].in_use &&
         small + larger == near.cached() && magazines_.balanced(near) && live == counted;
}

} // namespace gpumem::detail
