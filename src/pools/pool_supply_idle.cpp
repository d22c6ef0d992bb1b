// Free memory of which nothing is in use any more: finding it, and letting its pages go.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pool_supply_idle.impl;
import :pool_supply;
import :block;
import :chunks;
import :page_growth;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :tags;
import :virtual_pages;

namespace gpumem::detail {

// From the top of free memory down: what lies side by side is one run.
void pool_supply::append(std::vector<page_run>& runs, page_run const& next) {
  auto* const above = runs.empty() ? nullptr : &runs.back();
  if (above && above->shard == next.shard && above->where.offset == next.where.end()) {
    above->where = {next.where.offset, next.where.bytes + above->where.bytes};
    above->pages += next.pages;
  } else {
    runs.push_back(next);
  }
}

// What nobody uses is one where it lies side by side; with `reuse::own` it stays with the streams that freed it.
void pool_supply::join_complete(pool_shard& in) {
  if (!in.paged || (options_.cross_stream == reuse::own && !closed_)) return;
  auto const complete = [gone = over()](block const& each) { return gone || each.tags.completed(); };
  for (auto* at = in.paged->last; at; at = at->lower) {
    if (at->is_free() && !at->tags.empty() && complete(*at)) at = &in.ranges.complete(*at);
  }
}

// Joins what is complete. Free memory side by side of which the host has seen every use complete, by address; without
// the block in which the address `spared` lies, if it is not 0.
std::vector<pool_supply::idle_run> pool_supply::idle_runs(std::uintptr_t spared) {
  std::vector<idle_run> found;
  bool const gone = over();
  // What nobody uses lies on one shelf then, so that the blocks of a large pool need not be walked over.
  bool const on_shelf = !closed_ && !gone && options_.cross_stream != reuse::own;
  if (on_shelf) order_.give_completed(shard_list::from{shards_, *shards_.all().front()});
  for (auto const& in : shards_.all()) {
    if (on_shelf) {
      in->ranges.by_order().common().bins().visit_from(smallest_page, [&](block& range) {
        bool const stays = spared - range.base < range.bytes;
        if (!stays && range.home == in->paged) found.push_back({in.get(), &range, range.base, range.end()});
      });
      continue;
    }
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
  // The lowest go first. Where the longest did, a recorded trace with blocks of most of the pool moved a quarter more.
  std::ranges::sort(found, {}, &idle_run::begin);
  return found;
}

std::vector<pool_supply::page_run> pool_supply::idle_pages(page_wish const& what) {
  std::vector<page_run> found;
  std::size_t sum = 0, pages = 0;
  for (auto const& run : idle_runs(what.spared)) {
    auto& in = *run.in;
    if (what.in && what.in != &in) continue;
    auto const base = reinterpret_cast<std::byte const*>(in.pages->base());
    auto const begin = in.offset_of(run.begin);
    auto* last = run.last;
    for (auto end = in.offset_of(run.end); end > begin && sum < what.wanted && pages < what.most_pages;) {
      auto const page = in.pages->page_of(base + end - 1);
      if (!page || page->where.offset < begin) break;
      bool const whole = !page->pinned && page->where.end() <= end;
      while (in.offset_of(last->base) >= page->where.end()) last = last->lower;
      if (whole && page->where.bytes >= what.smallest && page->where.bytes <= what.most - sum) {
        sum += page->where.bytes;
        ++pages;
        append(found, {&in, last, page->where});
      }
      end = page->where.offset;
    }
  }
  if (sum < what.least) found.clear();
  return found;
}

// Takes pages out of the ranges, and counts them as leaving; those that stay, since the host has no memory, out of the
// list. How many bytes.
std::size_t pool_supply::carve_out(std::vector<page_run>& idle) noexcept {
  std::size_t given = 0;
  auto carved = idle.begin();
  try {
    for (; carved != idle.end(); ++carved) {
      auto& [in, last, where, count] = *carved;
      in->ranges.carve(*last, in->first_address + where.offset, where.bytes);
      in->reserved -= where.bytes;
      ++in->counts.releases;
      given += where.bytes;
    }
  } catch (std::bad_alloc const&) { idle.erase(carved, idle.end()); }
  for (auto const& in : shards_.all()) {
    if (!in->paged) continue;
    in->ranges.cut_off_hole(*in->paged);
    if (in->paged->first) continue;
    chunks_.forget(*std::exchange(in->paged, nullptr));
  }
  chunks_.begin_leave(given);
  told_.note_reserved();
  return given;
}

std::size_t pool_supply::pages_in(std::vector<page_run> const& runs) noexcept {
  std::size_t sum = 0;
  for (auto const& each : runs) sum += each.pages;
  return sum;
}

// Without the lock.
void pool_supply::unmap(std::vector<page_run> const& carved) noexcept {
  for (auto const& each : carved) each.shard->pages->unmap(each.where.offset, each.where.bytes);
}

std::size_t pool_supply::give_back_idle(page_wish const& what, shard_locks& held) noexcept {
  wait_for_growth(held);
  std::vector<page_run> idle;
  try {
    idle = idle_pages(what);
  } catch (std::bad_alloc const&) { return 0; }
  if (idle.empty()) return 0;
  auto const given = carve_out(idle);
  growing_ = true;
  held.unlock();
  unmap(idle);
  held.lock();
  chunks_.end_leave(given);
  end_growth();
  return given;
}

// Pages that are wholly free give way to others for a request; not those beside which it would grow. These may become a
// part of a larger range before they are looked at. Where it has no place yet, to make a hole that is large enough.
// `given`: before, for the same. How many bytes.
std::size_t pool_supply::make_way(pool_request const& what, std::optional<growth_plan> const& plan, std::size_t given,
                                  shard_locks& held) {
  look_for_moves(what);
  auto const beyond = chunks_.reserved() - std::min(chunks_.reserved(), chunks_.most()); // the limit was lowered
  auto const needed = plan ? plan->bytes : what.bytes, missing = plan ? needed - given : needed;
  auto const least = beyond > 0 ? 0 : lacking(needed);
  auto const more =
      give_back_idle({.wanted = missing + beyond, .least = least, .spared = plan ? plan->beside : 0}, held);
  what.own->paths.made_way += more > 0;
  return more;
}

} // namespace gpumem::detail
