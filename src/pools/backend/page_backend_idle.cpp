// Finds free memory whose uses are complete, and takes whole pages of it out of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>
module gpumem:page_backend_idle.impl;
import :page_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :pool_options;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream_timeline;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// Adds a run. If it ends where the last run begins, joins both.
void append(std::vector<page_run>& runs, page_run const& next) {
  auto* const above = runs.empty() ? nullptr : &runs.back();
  if (above && above->in == next.in && above->where.offset == next.where.end()) {
    above->where = {next.where.offset, next.where.bytes + above->where.bytes};
    above->pages += next.pages;
  } else {
    runs.push_back(next);
  }
}

} // namespace

// Joins adjacent ranges whose uses are complete. With `reuse_policy::ordered` memory stays with the streams that freed
// it, so this does nothing until the pool is closed.
void idle_pages::coalesce_complete(address_range& range) {
  if (!range.mapped || (parts_.options.cross_stream == reuse_policy::ordered && !parts_.closed)) return;
  auto const complete = [gone = parts_.device_gone()](block const& each) { return gone || each.uses.completed(); };
  for (auto* at = range.mapped->last; at; at = at->lower) {
    if (at->is_free() && !at->uses.empty() && complete(*at)) at = &range.shard->ranges.free_ranges().mark_complete(*at);
  }
}

// Joins ranges whose uses are complete. Returns the runs of idle memory, sorted by address. Idle memory is free, and
// the host has seen all its uses complete, except those of the stream `in_use_by`. Leaves out the block that holds the
// address `excluded`, unless that address is 0.
std::vector<idle_pages::idle_run> idle_pages::find_runs(page_query const& query) {
  std::vector<idle_run> runs;
  bool const gone = parts_.device_gone();
  auto const is_idle = [&](block const& range) {
    return gone || std::ranges::all_of(range.uses, [&](stream_use const& use) {
             return use.completed() || use.timeline == query.in_use_by;
           });
  };
  // In the usual case promote_completed() moves all complete ranges to the ready list. Then the search need not visit
  // all blocks of a large pool.
  bool const on_one_list =
      !parts_.closed && !gone && !query.in_use_by && parts_.options.cross_stream != reuse_policy::ordered;
  if (on_one_list)
    parts_.rules.promote_completed(shard_list::search_order{parts_.shards, *parts_.shards.all().front()});
  for (auto const& shard : parts_.shards.all()) {
    if (on_one_list) {
      shard->ranges.lists().ready().bins().visit_from(smallest_page, [&](block& range) {
        bool const stays = query.excluded - range.base < range.bytes;
        if (!stays && range.parent->addresses)
          runs.push_back({range.parent->addresses, &range, range.base, range.end()});
      });
      continue;
    }
    for (auto const& addresses : shard->addresses) {
      coalesce_complete(*addresses);
      for (auto* at = addresses->mapped ? addresses->mapped->last : nullptr; at; at = at->lower) {
        bool const stays = query.excluded - at->base < at->bytes;
        if (!at->is_free() || stays || !is_idle(*at)) continue;
        if (!runs.empty() && runs.back().in == addresses.get() && runs.back().begin == at->end()) {
          runs.back().begin = at->base;
        } else {
          runs.push_back({addresses.get(), at, at->base, at->end()});
        }
      }
    }
  }
  std::erase_if(runs, [](idle_run const& each) { return each.bytes() < smallest_page; });
  // The lowest run goes first. When the longest one went first, a quarter more was moved in a recorded trace whose
  // blocks each take most of the pool. The runs of the shard that needs memory go before those of others.
  std::ranges::sort(runs, {},
                    [&](idle_run const& each) { return std::pair{each.in->shard != query.nearest, each.begin}; });
  return runs;
}

std::vector<page_run> idle_pages::find(page_query const& query) {
  std::vector<page_run> runs;
  std::size_t sum = 0, pages = 0;
  for (auto const& run : find_runs(query)) {
    auto& addresses = *run.in;
    if ((query.only_nearest && addresses.shard != query.nearest) || (query.in && query.in != &addresses)) continue;
    auto const base = reinterpret_cast<std::byte const*>(addresses.pages.base());
    auto const begin = addresses.offset_of(run.begin);
    auto* last = run.last;
    for (auto end = addresses.offset_of(run.end); end > begin && sum < query.wanted && pages < query.max_pages;) {
      auto const page = addresses.pages.page_of(base + end - 1);
      if (!page || page->where.offset < begin) break;
      bool const in_query_window =
          !query.in || (page->where.offset >= query.within.offset && page->where.end() <= query.within.end());
      bool const whole = !page->pinned && page->where.end() <= end;
      while (addresses.offset_of(last->base) >= page->where.end()) last = last->lower;
      auto const bytes = page->where.bytes;
      if (whole && in_query_window && bytes >= query.smallest &&
          bytes <= std::min(query.largest, query.max_bytes - sum)) {
        sum += bytes;
        ++pages;
        append(runs, {&addresses, last, page->where});
      }
      end = page->where.offset;
    }
  }
  if (sum < query.least) runs.clear();
  return runs;
}

std::size_t idle_pages::detach(std::vector<page_run>& idle) noexcept {
  std::size_t returned_bytes = 0;
  auto detached = idle.begin();
  try {
    for (; detached != idle.end(); ++detached) {
      auto& [in, last, where, count] = *detached;
      auto& shard = *in->shard;
      shard.ranges.make_hole(*last, reinterpret_cast<std::uintptr_t>(in->pages.base()) + where.offset, where.bytes);
      shard.reserved -= where.bytes;
      ++shard.counts.upstream_frees;
      returned_bytes += where.bytes;
    }
  } catch (std::bad_alloc const&) { idle.erase(detached, idle.end()); }
  for (auto const& shard : parts_.shards.all()) {
    for (auto const& in : shard->addresses) {
      if (!in->mapped) continue;
      shard->ranges.trim_hole(*in->mapped);
      if (!in->mapped->first) parts_.chunks.erase(*std::exchange(in->mapped, nullptr));
    }
  }
  parts_.chunks.begin_release(returned_bytes);
  parts_.observer.on_reserved_changed();
  return returned_bytes;
}

std::size_t idle_pages::count(std::vector<page_run> const& runs) noexcept {
  std::size_t sum = 0;
  for (auto const& each : runs) sum += each.pages;
  return sum;
}

std::size_t idle_pages::bytes(std::vector<page_run> const& runs) noexcept {
  std::size_t sum = 0;
  for (auto const& each : runs) sum += each.where.bytes;
  return sum;
}

void idle_pages::unmap(std::vector<page_run> const& detached) noexcept {
  for (auto const& each : detached) each.in->pages.unmap(each.where.offset, each.where.bytes);
}

} // namespace gpumem::detail
