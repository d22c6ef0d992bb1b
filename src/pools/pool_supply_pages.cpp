// A pool and its upstream's pages: growth at the end or in holes, and giving back what is wholly free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
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
import :tags;
import :virtual_pages;

namespace gpumem::detail {

// From the top of free memory down: what lies side by side is one run.
void pool_supply::append(std::vector<page_run>& runs, page_run const& next) {
  auto* const above = runs.empty() ? nullptr : &runs.back();
  if (above && above->shard == next.shard && above->where.offset == next.where.end()) {
    above->where = {next.where.offset, next.where.bytes + above->where.bytes};
  } else {
    runs.push_back(next);
  }
}

// Maps what is missing; the place is in that and in what is free before it. Empty where they do not make one.
expected<pool_place, failure> pool_supply::grow_pages(pool_request const& what, shard_locks& held, bool exact) {
  auto& own = *what.own;
  auto plan = growth_.plan(what, own, exact);
  // What has made way may have been beside another hole, for which more is missing then.
  bool moving = options_.growth == growth::compact && !exact;
  for (std::size_t given = 0; moving && (!plan || given < plan->bytes);) {
    auto const more = make_way(what, plan, given, held);
    given += more;
    moving = more > 0;
    plan = growth_.plan(what, own, exact);
  }
  if (!plan) return unexpected<failure>{failure{outcome::exhausted}};
  if (plan->bytes > chunks_.room()) {
    if (chunks_.leaving() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    wait_for_return(held);
    return pool_place{};
  }
  auto const fresh = draw_pages(own, *plan, held);
  if (!fresh) return unexpected<failure>{fresh.error()};
  auto* range = *fresh;
  auto* const before = range->lower;
  bool const joins = growth_.usable(before, what.key);
  if (joins && own.ranges.join(*before)) range = before;
  if (plan->gap && growth_.usable(range->upper, what.key)) own.ranges.join(*range);
  std::size_t offset = 0;
  if (!fits(*range, what.bytes, what.alignment, offset)) return pool_place{};
  return pool_place{range, offset, rung::none};
}

// Maps in the gap or at the end, without the lock, and only while nobody else does; where the device has not so much,
// `least`. The range that holds it.
expected<block*, failure> pool_supply::draw_pages(pool_shard& into, growth_plan const& plan, shard_locks& held) {
  bool const generous = growth_.is_generous(into);
  growing_ = true;
  held.unlock();
  expected<page_extent, failure> made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}};
  try {
    if (!into.pages) into.pages = upstream_->make_pages();
    auto const map = [&](std::size_t wanted) {
      auto const end = into.pages->mapped_end();
      bool const fits_behind = wanted <= into.pages->addresses() - end; // else any hole does that is as large
      auto const at = plan.gap ? *plan.gap : fits_behind ? end : into.pages->place(wanted).value_or(end);
      return into.pages->map(at, wanted, growth_.page_size(*into.pages, wanted, generous));
    };
    made = map(plan.bytes);
    bool const too_much = !made && (made.error().what == outcome::exhausted || made.error().what == outcome::too_large);
    if (too_much && plan.bytes > plan.least) made = map(plan.least);
  } catch (cuda_error const& e) {
    made = unexpected<failure>{failure{outcome::driver_error, static_cast<int>(e.status()), plan.bytes}};
  } catch (std::bad_alloc const&) { made = unexpected<failure>{failure{outcome::exhausted, 0, plan.bytes}}; }
  held.lock();
  if (made) {
    try {
      auto& added = add_pages(into, *made);
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

// Every stream may use them at once. Throws std::bad_alloc, and nothing is changed.
block& pool_supply::add_pages(pool_shard& into, page_extent const& where) {
  into.first_address = reinterpret_cast<std::uintptr_t>(into.pages->base());
  into.addresses = into.pages->addresses();
  auto const address = into.first_address + where.offset;
  block* added = nullptr;
  if (!into.paged) {
    auto& home = chunks_.add(reinterpret_cast<void*>(address), where.bytes);
    try {
      added = &into.ranges.add(home, {});
    } catch (...) {
      chunks_.end_leave(chunks_.begin_leave(home).bytes);
      throw;
    }
    home.shard = &into;
    into.paged = &home;
  } else {
    auto& home = *into.paged;
    if (address < home.end()) {
      auto& hole = *range_map::covering(home, reinterpret_cast<void*>(address));
      added = &into.ranges.fill(hole, address - hole.base, where.bytes, {});
    } else {
      // What the driver would not let go lies between: a hole.
      auto const gap = address - home.end();
      added = &into.ranges.extend(home, gap + where.bytes, {});
      if (gap > 0) added = into.ranges.carve(*added, address - gap, gap).upper;
    }
    chunks_.note_more(where.bytes);
  }
  note_growth(into, where.bytes);
  return *added;
}

// What nobody uses is one where it lies side by side; with `reuse::own` it stays with the streams that freed it.
void pool_supply::join_complete(pool_shard& in) {
  if (!in.paged || (options_.cross_stream == reuse::own && !closed_)) return;
  auto const complete = [gone = over()](block const& each) { return gone || each.tags.completed(); };
  for (auto* at = in.paged->last; at; at = at->lower) {
    if (at->is_free() && !at->tags.empty() && complete(*at)) at = &in.ranges.complete(*at);
  }
}

// Joins what is complete. Free memory side by side of which the host has seen every use complete, the longest first;
// without the block in which the address `spared` lies, if it is not 0.
std::vector<pool_supply::idle_run> pool_supply::idle_runs(std::uintptr_t spared) {
  std::vector<idle_run> found;
  bool const gone = over();
  for (auto const& in : shards_.all()) {
    join_complete(*in);
    for (auto* at = in->paged ? in->paged->last : nullptr; at; at = at->lower) {
      bool const stays = spared - at->base < at->bytes;
      if (!at->is_free() || stays || !(gone || at->tags.completed())) continue;
      if (!found.empty() && found.back().in == in.get() && found.back().begin == at->end()) {
        found.back().begin = at->base;
      } else {
        found.push_back({in.get(), at, at->base, at->end()});
      }
    }
  }
  std::erase_if(found, [](idle_run const& each) { return each.bytes() < smallest_page; });
  std::ranges::sort(found, [](idle_run const& a, idle_run const& b) {
    return a.bytes() != b.bytes() ? a.bytes() > b.bytes() : a.begin < b.begin;
  });
  return found;
}

// Whole pages of it, so many bytes at most, or, to `reach` them, a page more.
std::vector<pool_supply::page_run> pool_supply::idle_pages(std::size_t wanted, bool reach, std::uintptr_t spared) {
  std::vector<page_run> found;
  std::size_t sum = 0;
  for (auto const& run : idle_runs(spared)) {
    auto& in = *run.in;
    auto const base = reinterpret_cast<std::byte const*>(in.pages->base());
    auto const begin = in.offset_of(run.begin);
    auto* last = run.last;
    for (auto end = in.offset_of(run.end); end > begin && sum < wanted;) {
      auto const page = in.pages->page_of(base + end - 1);
      if (!page || page->where.offset < begin) break;
      bool const whole = !page->pinned && page->where.end() <= end;
      while (in.offset_of(last->base) >= page->where.end()) last = last->lower;
      if (whole && (reach || page->where.bytes <= wanted - sum)) {
        sum += page->where.bytes;
        append(found, {&in, last, page->where});
      }
      end = page->where.offset;
    }
  }
  return found;
}

// Out of the ranges first, then unmapped without the lock; how many bytes.
std::size_t pool_supply::give_back_pages(std::vector<page_run> const& idle, shard_locks& held) noexcept {
  std::size_t given = 0;
  auto carved = idle.begin();
  try {
    for (; carved != idle.end(); ++carved) {
      auto& [in, last, where] = *carved;
      in->ranges.carve(*last, in->first_address + where.offset, where.bytes);
      in->reserved -= where.bytes;
      ++in->counts.releases;
      given += where.bytes;
    }
  } catch (std::bad_alloc const&) {
    // The rest stays.
  }
  for (auto const& in : shards_.all()) {
    if (!in->paged) continue;
    in->ranges.cut_off_hole(*in->paged);
    if (in->paged->first) continue;
    chunks_.forget(*std::exchange(in->paged, nullptr));
  }
  chunks_.begin_leave(given);
  told_.note_reserved();
  growing_ = true;
  held.unlock();
  for (auto const& each : std::ranges::subrange{idle.begin(), carved}) {
    each.shard->pages->unmap(each.where.offset, each.where.bytes);
  }
  held.lock();
  chunks_.end_leave(given);
  end_growth();
  return given;
}

std::size_t pool_supply::give_back_idle(std::size_t wanted, bool reach, std::uintptr_t spared,
                                        shard_locks& held) noexcept {
  wait_for_growth(held);
  try {
    auto const idle = idle_pages(wanted, reach, spared);
    return idle.empty() ? 0 : give_back_pages(idle, held);
  } catch (std::bad_alloc const&) { return 0; }
}

// Pages that are wholly free give way to others for a request; not those beside which it would grow. These may become a
// part of a larger range before they are looked at. Where it has no place yet, to make a hole that is large enough.
// `given`: before, for the same. How many bytes.
std::size_t pool_supply::make_way(pool_request const& what, std::optional<growth_plan> const& plan, std::size_t given,
                                  shard_locks& held) {
  order_.learn_completion(nullptr, shard_list::from{shards_, *what.own});
  auto const more =
      plan ? give_back_idle(plan->bytes - given, true, plan->beside, held) : give_back_idle(what.bytes, true, 0, held);
  what.own->paths.made_way += more > 0;
  return more;
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
