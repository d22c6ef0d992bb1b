// Growth of pools over pages, at the end of the mapped addresses or in holes: by moved free pages, or by new ones.
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
module gpumem:pool_backend_pages.impl;
import :allocation_request;
import :attempt;
import :block;
import :cuda;
import :device;
import :error;
import :growth_policy;
import :pool_backend;
import :pool_options;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_uses;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// The time to move a page or to make one, whatever its size: 33 us and 27 us on an H200. Not measured at each page, so
// that neither reads a clock.
inline constexpr time_budget::nanoseconds page_cost = std::chrono::microseconds{40};
// The time of the polls before a move, charged even if no page moves.
inline constexpr time_budget::nanoseconds poll_cost = page_cost / 4;

} // namespace

std::size_t pool_backend::affordable_pages() noexcept {
  if (move_budget_.unlimited()) return SIZE_MAX;
  return static_cast<std::size_t>(std::max(move_budget_.left(sync::now()) / page_cost, 0.0));
}

void pool_backend::charge_moves(std::size_t pages) noexcept {
  move_budget_.spend(static_cast<double>(pages) * page_cost);
}

void pool_backend::poll_for_moves(allocation_request const& request) {
  rules_.poll_streams_for_moves(request.key, shard_list::search_order{shards_, *request.shard});
  if (affordable_pages() > 0) move_budget_.spend(poll_cost); // at the limit the polls are made even without budget
}

// Moves free pages or maps new ones for a request. Returns a place in them and their free neighbours. Must be retried
// if these are not enough.
attempt<placement> pool_backend::grow_pages(allocation_request const& request, all_shards_lock& held, bool exact) {
  auto& shard = *request.shard;
  bool moving = !exact && shards_.single() && may_move(request) && affordable_pages() > 0;
  if (moving) {
    if (auto const place = move_pages(request, held, false)) return place;
  }
  auto plan = growth_.plan(request, shard, exact);
  // Unmaps free pages in place of those that it will map. Not at the limit: there move_at_limit() moves pages once all
  // other ways have failed. An unmapped page may have lain beside another hole, in which more bytes are missing then:
  // so each round plans again.
  for (std::size_t given = 0; moving && (!plan || (given < plan->bytes && lacking(plan->bytes) == 0));) {
    auto const more = evict_pages(request, plan, given, held);
    given += more;
    auto const left = affordable_pages(); // a large page is charged as several of the smallest size
    charge_moves(std::min(left, more / smallest_page));
    moving = more > 0 && left > 0;
    plan = growth_.plan(request, shard, exact);
  }
  if (!plan) return unexpected<failure>{failure{outcome::exhausted}};
  if (plan->bytes > chunks_.headroom()) {
    if (chunks_.releasing() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    wait_for_release(held);
    return attempt<placement>::retry();
  }
  auto const fresh = map_pages(shard, *plan, fresh_uses(request), held);
  if (!fresh) return unexpected<failure>{fresh.error()};
  auto const place = placement_in(**fresh, request);
  return place ? attempt<placement>{place} : attempt<placement>::retry();
}

bool pool_backend::may_move(allocation_request const& request) const noexcept {
  bool const page_is_free = request.shard->ranges.free_bytes() >= smallest_page;
  return page_is_free && options_.cross_stream != reuse_policy::ordered;
}

placement pool_backend::move_at_limit(allocation_request const& request, all_shards_lock& held) {
  if (!paged() || !may_move(request)) return {};
  wait_for_growth(held);
  return move_pages(request, held, true);
}

// New memory has no uses. It counts as used by the request's stream at epoch 0, which is complete since the first epoch
// is 1. So the rest of it goes to the free list of that stream, in whose segment it lies.
stream_uses pool_backend::fresh_uses(allocation_request const& request) const noexcept {
  return rules_.needs_host(request.key) ? stream_uses{} : stream_uses{stream_use{&request.key.timeline(), 0}};
}

// Coalesces new memory with usable neighbours. Returns the place of the request in the result; empty if it is too
// small.
placement pool_backend::placement_in(block& fresh, allocation_request const& request) const {
  auto& ranges = fresh.parent->shard->ranges;
  auto* range = &fresh;
  auto* const before = range->lower;
  bool const merges = growth_.usable(before, request.key);
  if (merges && ranges.merge(*before)) range = before;
  if (growth_.usable(range->upper, request.key)) ranges.merge(*range);
  std::size_t offset = 0;
  if (!fits(*range, request.bytes, request.alignment, offset)) return {};
  return {range, offset, reuse_tier::none};
}

// Moves unused pages to where memory is missing. A move costs two thirds of unmapping a page and making another, or
// less if the page is large. `at_limit`: the pool would unmap pages otherwise, so the time for moves is not bounded.
// Returns an empty placement if the pages are not enough.
placement pool_backend::move_pages(allocation_request const& request, all_shards_lock& held, bool at_limit) {
  auto& shard = *request.shard;
  if (!shard.pages) return {};
  poll_for_moves(request);
  auto const plan = growth_.plan(request, shard, false);
  if (!plan) return {};
  auto const end = shard.pages->mapped_end();
  auto const available = plan->hole ? plan->hole->bytes : shard.pages->address_space() - end;
  auto idle = idle_pages({.wanted = plan->bytes,
                          .least = lacking(plan->bytes),
                          .max_bytes = available,
                          .excluded = plan->beside,
                          .in = &shard,
                          .smallest = at_limit ? 0 : growth_.min_moved_page(*shard.pages),
                          .max_pages = at_limit ? SIZE_MAX : affordable_pages()});
  if (idle.empty()) return {};
  charge_moves(std::min(pages_in(idle), affordable_pages()));
  std::vector<page_extent> runs(idle.size());
  auto const given = detach_pages(idle);
  runs.erase(std::ranges::transform(idle, runs.begin(), &page_run::where).out, runs.end());
  growing_ = true;
  held.unlock();
  auto const moved = shard.pages->move(runs, plan->hole ? plan->offset(given) : end);
  if (!moved) unmap(idle);
  held.lock();
  shard.counters.page_moves += bool{moved};
  chunks_.end_release(given);
  auto const there = accept_pages(shard, moved, fresh_uses(request), held);
  return there ? placement_in(**there, request) : placement{};
}

// Maps pages in the hole or at the end, without the locks, while growing_ keeps other threads out. If the device has
// less than `bytes`, maps `least`. Returns the range that holds the pages.
expected<block*, failure> pool_backend::map_pages(pool_shard& into, growth_plan const& plan, stream_uses const& uses,
                                                  all_shards_lock& held) {
  auto const affordable = affordable_pages();
  std::size_t paid = 0;
  growing_ = true;
  held.unlock();
  expected<page_extent, failure> made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}};
  try {
    if (!into.pages) into.pages = upstream_.make_pages();
    auto const before = into.pages->pages();
    auto const map = [&](std::size_t wanted) {
      auto const end = into.pages->mapped_end();
      bool const fits_behind = wanted <= into.pages->address_space() - end; // otherwise in any large enough hole
      auto const at = plan.hole     ? plan.offset(wanted)
                      : fits_behind ? end
                                    : into.pages->find_extent(wanted).value_or(end);
      return into.pages->map(at, wanted, growth_.page_size(*into.pages, wanted, affordable));
    };
    made = map(plan.bytes);
    bool const too_much =
        !made && (made.error().reason == outcome::exhausted || made.error().reason == outcome::too_large);
    if (too_much && plan.bytes > plan.least) made = map(plan.least);
    paid = into.pages->pages() - std::min(before, into.pages->pages());
  } catch (cuda_error const& e) {
    made = unexpected<failure>{failure{outcome::driver_error, static_cast<int>(e.status()), plan.bytes}};
  } catch (std::bad_alloc const&) { made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}}; }
  held.lock();
  charge_moves(std::min(paid, affordable));
  return accept_pages(into, made, uses, held);
}

// Adds pages that were mapped or moved without the locks, and ends the growth. Returns the range that holds the pages.
expected<block*, failure> pool_backend::accept_pages(pool_shard& into, expected<page_extent, failure> const& made,
                                                     stream_uses const& uses, all_shards_lock& held) {
  if (made) {
    try {
      auto& added = add_pages(into, *made, uses);
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
  if (why.reason == outcome::device_lost) device_->mark_lost(static_cast<CUresult>(why.code));
  return unexpected<failure>{why};
}

// Adds mapped pages to the shard as a free range with these uses. If it throws std::bad_alloc, nothing is changed.
block& pool_backend::add_pages(pool_shard& into, page_extent const& where, stream_uses const& uses) {
  into.first_address = reinterpret_cast<std::uintptr_t>(into.pages->base());
  into.address_space = into.pages->address_space();
  auto const address = into.first_address + where.offset;
  block* added = nullptr;
  if (!into.paged) {
    auto& parent = chunks_.add(reinterpret_cast<void*>(address), where.bytes);
    try {
      added = &into.ranges.add(parent, uses);
    } catch (...) {
      chunks_.end_release(chunks_.begin_release(parent).bytes);
      throw;
    }
    parent.shard = &into;
    into.paged = &parent;
  } else {
    auto& parent = *into.paged;
    if (address < parent.end()) {
      auto& hole = into.ranges.hole_at(address);
      added = &into.ranges.fill_hole(hole, address - hole.base, where.bytes, uses);
    } else {
      // Addresses that the driver did not unmap lie in between: they become a hole.
      auto const gap = address - parent.end();
      added = &into.ranges.extend(parent, gap + where.bytes, uses);
      if (gap > 0) added = into.ranges.make_hole(*added, address - gap, gap).upper;
    }
    chunks_.add_reserved(where.bytes);
  }
  count_growth(into, where.bytes);
  return *added;
}

// Waits until no pages change. Returns the shard's pages that hold the address; null for chunks and for memory that is
// not the pool's.
virtual_pages* pool_backend::pages_of(void const* pointer, all_shards_lock& held) {
  wait_for_growth(held);
  auto const* const parent = chunks_.find_containing(pointer);
  return parent ? parent->shard->pages.get() : nullptr;
}

bool pool_backend::pin(void const* pointer, std::size_t bytes, all_shards_lock& held) {
  if (auto* const pages = pages_of(pointer, held)) return pages->pin(pointer, bytes);
  // A chunk stays as long as it has a live block.
  auto const* const parent = chunks_.find_containing(pointer);
  return parent && bytes > 0 && bytes <= parent->end() - reinterpret_cast<std::uintptr_t>(pointer);
}

void pool_backend::unpin(void const* pointer, std::size_t bytes, all_shards_lock& held) {
  if (auto* const pages = pages_of(pointer, held)) pages->unpin(pointer, bytes);
}

expected<int, failure> pool_backend::export_page(void const* pointer, all_shards_lock& held) {
  if (auto* const pages = pages_of(pointer, held)) return pages->export_page(pointer);
  return unexpected<failure>{failure{outcome::invalid_argument, 0, 0}};
}

} // namespace gpumem::detail
