// A pool and its upstream's chunks: growth, and giving back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
module gpumem:pool_supply.impl;
import :pool_supply;
import :block;
import :chunks;
import :cuda;
import :device;
import :error;
import :page_growth;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :sync;
import :tags;
import :time_budget;
import :timeline;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// The longest burst of moves. With a tenth of it recorded traces of a fifth of a second reserved a quarter more: the
// pages that they made instead stay scattered.
inline constexpr time_budget::nanoseconds most_saved = std::chrono::milliseconds{50};

std::optional<device> device_of(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  return ordinal < 0 ? std::nullopt : std::optional{device{ordinal}};
}

} // namespace

pool_supply::pool_supply(std::unique_ptr<pool_upstream> upstream, pool_options const& options, pool_order const& order,
                         shard_list& shards, listener& told)
    : upstream_{std::move(upstream)}, options_{options}, device_{device_of(*upstream_)}, order_{order}, shards_{shards},
      told_{told}, chunks_{options.limit}, growth_{chunks_, shards, order},
      moves_{options.effort, most_saved, sync::now()} {}

bool pool_supply::wait_for_growth(shard_locks& held) {
  bool const any = growing_;
  while (growing_) held.wait(changed_);
  return any;
}

expected<pool_place, failure> pool_supply::grow(pool_request const& what, shard_locks& held, bool exact) {
  auto grown = paged() ? grow_pages(what, held, exact) : grow_chunk(what, held, exact);
  if (grown) return grown;
  auto const& why = grown.error();
  auto const kind = why.what == outcome::too_large ? outcome::exhausted : why.what;
  return unexpected<failure>{failure{kind, why.code, what.requested}};
}

expected<std::size_t, failure> pool_supply::grow_to(std::size_t bytes, pool_shard& into, shard_locks& held) {
  for (;;) {
    wait_for_growth(held);
    auto const unit = paged() ? smallest_page : granule;
    auto const wanted = std::min((bytes + granule - 1) / granule * granule, chunks_.most() / unit * unit);
    if (wanted <= chunks_.reserved()) return std::size_t{0};
    auto const missing = wanted - chunks_.reserved();
    if (missing > chunks_.room()) { // because of what has not left yet
      wait_for_return(held);
      continue;
    }
    auto const fresh = paged() ? draw_pages(into, {std::nullopt, missing, missing}, {}, held)
                               : draw_chunk(stream_key::host(), into, missing, missing, held);
    if (!fresh) return unexpected<failure>{fresh.error()};
    return missing;
  }
}

expected<pool_place, failure> pool_supply::grow_chunk(pool_request const& what, shard_locks& held, bool exact) {
  auto const need = what.bytes + (what.alignment - granule);
  auto bytes = chunks_.growth(need, what.own->reserved);
  if (bytes == 0 && chunks_.leaving() > 0) {
    wait_for_return(held);
    return pool_place{};
  }
  if (bytes == 0) return unexpected<failure>{failure{outcome::exhausted}};
  if (exact) bytes = need;
  auto const fresh = draw_chunk(what.key, *what.own, bytes, need, held);
  if (!fresh) return unexpected<failure>{fresh.error()};
  std::size_t offset = 0;
  fits(**fresh, what.bytes, what.alignment, offset);
  return pool_place{*fresh, offset, rung::none};
}

// Draws without the lock, and only while nobody else does; where upstream has not so much, `least`. A chunk, wholly
// free.
expected<block*, failure> pool_supply::draw_chunk(stream_key const& key, pool_shard& into, std::size_t bytes,
                                                  std::size_t least, shard_locks& held) {
  growing_ = true;
  held.unlock();
  auto drawn = upstream_->draw(key, bytes);
  if (!drawn && bytes > least) drawn = upstream_->draw(key, bytes = least);
  held.lock();
  end_growth();
  if (!drawn) {
    auto const& why = drawn.error();
    if (device_ && why.what == outcome::device_lost) device_->lose(static_cast<CUresult>(why.code));
    return unexpected<failure>{why};
  }
  try {
    return &add_chunk(key, into, *drawn, bytes);
  } catch (std::bad_alloc const&) {
    held.unlock();
    upstream_->give_back({.base = reinterpret_cast<std::uintptr_t>(*drawn), .bytes = bytes});
    held.lock();
    throw;
  }
}

void pool_supply::wait_for_return(shard_locks& held) {
  auto const before = chunks_.leaving();
  while (chunks_.leaving() == before) held.wait(changed_);
}

void pool_supply::end_growth() noexcept {
  growing_ = false;
  changed_.notify_all();
}

// Upstream's memory is valid in the order in which it was given.
block& pool_supply::add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes) {
  bool const ordered = upstream_->stream_ordered() && !key.is_host();
  auto& added = chunks_.add(base, bytes);
  try {
    auto& fresh = into.ranges.add(added, ordered ? tag_set{{&key.order(), key.end_use(bytes, true)}} : tag_set{});
    added.shard = &into;
    note_growth(into, bytes);
    return fresh;
  } catch (...) {
    auto const lost = chunks_.begin_leave(added);
    chunks_.end_leave(lost.bytes);
    throw;
  }
}

void pool_supply::note_growth(pool_shard& into, std::size_t bytes) noexcept {
  into.reserved += bytes;
  ++into.counts.growths;
  told_.note_reserved();
}

pool_place pool_supply::adopt(pool_request const& what) {
  if (paged()) return {}; // they belong to the addresses where they are
  std::size_t offset = 0;
  auto* const idle = chunks_.largest_idle(0, [&](chunk const& home) {
    auto const& whole = *home.first;
    if (home.shard == what.own || home.last != &whole || !whole.is_free()) return false;
    return fits(whole, what.bytes, what.alignment, offset) &&
           order_.classify(whole.tags, what.key, rung::completed) != rung::none;
  });
  if (!idle) return {};
  auto& whole = what.own->ranges.take_over(*idle, idle->shard->ranges);
  idle->shard->reserved -= idle->bytes;
  what.own->reserved += idle->bytes;
  idle->shard = what.own;
  ++what.own->paths.adopted;
  fits(whole, what.bytes, what.alignment, offset);
  return {&whole, offset, order_.classify(whole.tags, what.key, rung::completed)};
}

std::size_t pool_supply::give_back(std::size_t keep, shard_locks& held) noexcept {
  if (!paged()) return give_back_chunks(keep, held);
  auto const most = chunks_.reserved() - std::min(keep, chunks_.reserved());
  return give_back_idle({.wanted = most, .most = most}, held);
}

void pool_supply::give_back_for(pool_request const& what, shard_locks& held) {
  if (!paged()) {
    give_back_chunks(0, held);
    return;
  }
  wait_for_growth(held); // pages are looked at only at rest
  auto const plan = growth_.plan(what, *what.own, true);
  make_way(what, plan, plan ? std::min(plan->bytes, chunks_.room()) : 0, held);
}

bool pool_supply::idle_and_complete(chunk const& home) const noexcept {
  bool complete = true, gone = over();
  range_map::visit(
      home, [&](block const& each) { complete = complete && each.is_free() && (gone || each.tags.completed()); });
  return complete;
}

// The largest first.
std::size_t pool_supply::give_back_chunks(std::size_t keep, shard_locks& held) noexcept {
  std::size_t given = 0;
  for (;;) {
    auto* const idle = chunks_.largest_idle(keep, [this](chunk const& home) { return idle_and_complete(home); });
    if (!idle) return given;
    idle->shard->ranges.remove(*idle);
    idle->shard->reserved -= idle->bytes;
    ++idle->shard->counts.releases;
    auto const gone = chunks_.begin_leave(*idle);
    told_.note_reserved();
    held.unlock();
    upstream_->give_back(gone);
    held.lock();
    chunks_.end_leave(gone.bytes);
    changed_.notify_all();
    given += gone.bytes;
  }
}

} // namespace gpumem::detail
