// A pool and its pages: growth at the end or in holes, of pages that nobody uses elsewhere or of new ones.
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
#include <vector>
module gpumem:pool_supply_pages.impl;
import :pool_supply;
import :pool_order;
import :block;
import :chunks;
import :cuda;
import :device;
import :error;
import :page_growth;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :sync;
import :tags;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// What it costs to move or to make one, whatever its size: 33 and 27 us on an H200. A constant, so that neither reads a
// clock.
inline constexpr time_budget::nanoseconds page_cost = std::chrono::microseconds{40};
// Also of a look for pages to move, whatever comes of it.
inline constexpr time_budget::nanoseconds look_cost = page_cost / 4;

} // namespace

std::size_t pool_supply::affordable_pages() noexcept {
  if (moves_.unlimited()) return SIZE_MAX;
  return static_cast<std::size_t>(std::max(moves_.left(sync::now()) / page_cost, 0.0));
}

void pool_supply::pay(std::size_t pages) noexcept { moves_.spend(static_cast<double>(pages) * page_cost); }

void pool_supply::look_for_moves(pool_request const& what) {
  order_.learn_completion_for_moves(what.key, shard_list::from{shards_, *what.own});
  if (affordable_pages() > 0) moves_.spend(look_cost); // at the limit it is made all the same
}

// Maps what is missing; the place is in that and in what is free before it. Empty where they do not make one.
expected<pool_place, failure> pool_supply::grow_pages(pool_request const& what, shard_locks& held, bool exact) {
  auto& own = *what.own;
  bool moving = !exact && shards_.single() && may_move(what) && affordable_pages() > 0;
  if (moving) {
    if (auto const place = move_pages(what, held, false)) return place;
  }
  auto plan = growth_.plan(what, own, exact);
  // At the limit pages move instead, once all else has failed. What has made way may have been beside another hole, for
  // which more is missing then.
  for (std::size_t given = 0; moving && (!plan || (given < plan->bytes && lacking(plan->bytes) == 0));) {
    auto const more = make_way(what, plan, given, held);
    given += more;
    auto const left = affordable_pages(); // larger pages than the smallest are charged as several
    pay(std::min(left, more / smallest_page));
    moving = more > 0 && left > 0;
    plan = growth_.plan(what, own, exact);
  }
  if (!plan) return unexpected<failure>{failure{outcome::exhausted}};
  if (plan->bytes > chunks_.room()) {
    if (chunks_.leaving() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    wait_for_return(held);
    return pool_place{};
  }
  auto const fresh = draw_pages(own, *plan, fresh_tags(what), held);
  if (!fresh) return unexpected<failure>{fresh.error()};
  return place_in(**fresh, what);
}

bool pool_supply::may_move(pool_request const& what) const noexcept {
  bool const page_is_free = what.own->ranges.free_bytes() >= smallest_page;
  return page_is_free && options_.cross_stream != reuse::own;
}

pool_place pool_supply::move_at_limit(pool_request const& what, shard_locks& held) {
  if (!paged() || !may_move(what)) return {};
  wait_for_growth(held);
  return move_pages(what, held, true);
}

// Nobody has used new memory; what the request leaves of it is its stream's, in whose segment it lies. The stream's
// first epoch is 1.
tag_set pool_supply::fresh_tags(pool_request const& what) const noexcept {
  return order_.by_host(what.key) ? tag_set{} : tag_set{tag{&what.key.order(), 0}};
}

// In what has been mapped and what is free beside it; empty where that is not enough.
pool_place pool_supply::place_in(block& fresh, pool_request const& what) const {
  auto& ranges = fresh.home->shard->ranges;
  auto* range = &fresh;
  auto* const before = range->lower;
  bool const joins = growth_.usable(before, what.key);
  if (joins && ranges.join(*before)) range = before;
  if (growth_.usable(range->upper, what.key)) ranges.join(*range);
  std::size_t offset = 0;
  if (!fits(*range, what.bytes, what.alignment, offset)) return {};
  return {range, offset, rung::none};
}

// Moves unused pages to where memory is missing. A move costs two thirds of giving a page back and drawing another, or
// less if the page is large. `at_limit`: pages would be given back otherwise, so the time for moves is not bounded.
// Returns an empty place if the pages are not enough.
pool_place pool_supply::move_pages(pool_request const& what, shard_locks& held, bool at_limit) {
  auto& own = *what.own;
  if (!own.pages) return {};
  look_for_moves(what);
  auto const plan = growth_.plan(what, own, false);
  if (!plan) return {};
  auto const end = own.pages->mapped_end();
  auto const most = plan->hole ? plan->hole->bytes : own.pages->addresses() - end;
  auto idle = idle_pages({.wanted = plan->bytes,
                          .least = lacking(plan->bytes),
                          .most = most,
                          .spared = plan->beside,
                          .in = &own,
                          .smallest = at_limit ? 0 : growth_.least_moved(*own.pages),
                          .most_pages = at_limit ? SIZE_MAX : affordable_pages()});
  if (idle.empty()) return {};
  pay(std::min(pages_in(idle), affordable_pages()));
  std::vector<page_extent> runs(idle.size());
  auto const given = carve_out(idle);
  runs.erase(std::ranges::transform(idle, runs.begin(), &page_run::where).out, runs.end());
  growing_ = true;
  held.unlock();
  auto const moved = own.pages->move(runs, plan->hole ? plan->offset(given) : end);
  if (!moved) unmap(idle);
  held.lock();
  own.paths.moved += bool{moved};
  chunks_.end_leave(given);
  auto const there = take_pages(own, moved, fresh_tags(what), held);
  return there ? place_in(**there, what) : pool_place{};
}

// Maps in the gap or at the end, without the lock, and only while nobody else does; where the device has not so much,
// `least`. The range that holds it.
expected<block*, failure> pool_supply::draw_pages(pool_shard& into, growth_plan const& plan, tag_set const& tags,
                                                  shard_locks& held) {
  auto const affordable = affordable_pages();
  std::size_t paid = 0;
  growing_ = true;
  held.unlock();
  expected<page_extent, failure> made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}};
  try {
    if (!into.pages) into.pages = upstream_->make_pages();
    auto const before = into.pages->pages();
    auto const map = [&](std::size_t wanted) {
      auto const end = into.pages->mapped_end();
      bool const fits_behind = wanted <= into.pages->addresses() - end; // else any hole does that is as large
      auto const at = plan.hole ? plan.offset(wanted) : fits_behind ? end : into.pages->place(wanted).value_or(end);
      return into.pages->map(at, wanted, growth_.page_size(*into.pages, wanted, affordable));
    };
    made = map(plan.bytes);
    bool const too_much = !made && (made.error().what == outcome::exhausted || made.error().what == outcome::too_large);
    if (too_much && plan.bytes > plan.least) made = map(plan.least);
    paid = into.pages->pages() - std::min(before, into.pages->pages());
  } catch (cuda_error const& e) {
    made = unexpected<failure>{failure{outcome::driver_error, static_cast<int>(e.status()), plan.bytes}};
  } catch (std::bad_alloc const&) { made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}}; }
  held.lock();
  pay(std::min(paid, affordable));
  return take_pages(into, made, tags, held);
}

// What was mapped while the lock was given up. The range that holds it.
expected<block*, failure> pool_supply::take_pages(pool_shard& into, expected<page_extent, failure> const& made,
                                                  tag_set const& tags, shard_locks& held) {
  if (made) {
    try {
      auto& added = add_pages(into, *made, tags);
      end_growth();
      return &added;
    } catch (std::bad_alloc const&) {
      held.unlock();
      into.pages->unmap(made->offset, made->bytes);
      held.lock();
      end_growth();
      throw;
    }
  }
  end_growth();
  auto const& why = made.error();
  if (why.what == outcome::device_lost) device_->lose(static_cast<CUresult>(why.code));
  return unexpected<failure>{why};
}

// Nobody has used them, so every stream may, whatever the tags. Throws std::bad_alloc, and nothing is changed.
block& pool_supply::add_pages(pool_shard& into, page_extent const& where, tag_set const& tags) {
  into.first_address = reinterpret_cast<std::uintptr_t>(into.pages->base());
  into.addresses = into.pages->addresses();
  auto const address = into.first_address + where.offset;
  block* added = nullptr;
  if (!into.paged) {
    auto& home = chunks_.add(reinterpret_cast<void*>(address), where.bytes);
    try {
      added = &into.ranges.add(home, tags);
    } catch (...) {
      chunks_.end_leave(chunks_.begin_leave(home).bytes);
      throw;
    }
    home.shard = &into;
    into.paged = &home;
  } else {
    auto& home = *into.paged;
    if (address < home.end()) {
      auto& hole = into.ranges.hole_at(address);
      added = &into.ranges.fill(hole, address - hole.base, where.bytes, tags);
    } else {
      // What the driver would not let go lies between: a hole.
      auto const gap = address - home.end();
      added = &into.ranges.extend(home, gap + where.bytes, tags);
      if (gap > 0) added = into.ranges.carve(*added, address - gap, gap).upper;
    }
    chunks_.note_more(where.bytes);
  }
  note_growth(into, where.bytes);
  return *added;
}

// Those in which the pointer lies, at rest; null of chunks, and of what is not the pool's.
virtual_pages* pool_supply::pages_of(void const* pointer, shard_locks& held) {
  wait_for_growth(held);
  auto const* const home = chunks_.covering(pointer);
  return home ? home->shard->pages.get() : nullptr;
}

bool pool_supply::pin(void const* pointer, std::size_t bytes, shard_locks& held) {
  if (auto* const pages = pages_of(pointer, held)) return pages->pin(pointer, bytes);
  // A chunk stays as long as anything lives in it.
  auto const* const home = chunks_.covering(pointer);
  return home && bytes > 0 && bytes <= home->end() - reinterpret_cast<std::uintptr_t>(pointer);
}

void pool_supply::unpin(void const* pointer, std::size_t bytes, shard_locks& held) {
  if (auto* const pages = pages_of(pointer, held)) pages->unpin(pointer, bytes);
}

expected<int, failure> pool_supply::export_page(void const* pointer, shard_locks& held) {
  if (auto* const pages = pages_of(pointer, held)) return pages->export_page(pointer);
  return unexpected<failure>{failure{outcome::invalid_argument, 0, 0}};
}

} // namespace gpumem::detail
