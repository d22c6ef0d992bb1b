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
  if (above && above->in == next.in && above->extent.offset == next.extent.end()) {
    above->extent = {next.extent.offset, next.extent.bytes + above->extent.bytes};
    above->pages += next.pages;
  } else {
    runs.push_back(next);
  }
}

// Returns whether the pages of a free range may leave it.
bool may_take(block const& range, page_query const& query) noexcept {
  return query.excluded - range.base >= range.bytes && range.parent->addresses;
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

// Returns whether all idle memory is on the list of ready memory, once promote_completed() has moved it there. A search
// then need not visit all blocks of a large pool.
bool idle_pages::is_on_one_list(page_query const& query) const noexcept {
  return !parts_.closed && !parts_.device_gone() && !query.in_use_by &&
         parts_.options.cross_stream != reuse_policy::ordered;
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
  bool const on_one_list = is_on_one_list(query);
  for (auto const& shard : parts_.shards.all()) {
    if (on_one_list) {
      shard->ranges.lists().ready().bins().visit_from(smallest_page, [&](block& range) {
        if (may_take(range, query)) runs.push_back({range.parent->addresses, &range, range.base, range.end()});
      });
      continue;
    }
    for (auto const& addresses : shard->addresses) {
      coalesce_complete(*addresses);
      for (auto* at = addresses->mapped ? addresses->mapped->last : nullptr; at; at = at->lower) {
        if (!at->is_free() || !may_take(*at, query) || !is_idle(*at)) continue;
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

// Adds the pages of a run that the query asks for.
void idle_pages::add_pages(found_pages& found, idle_run const& run, page_query const& query) {
  auto& addresses = *run.in;
  ++found.visited_ranges;
  if ((query.only_nearest && addresses.shard != query.nearest) || (query.in && query.in != &addresses)) return;
  auto const base = reinterpret_cast<std::byte const*>(addresses.pages.base());
  auto const begin = addresses.offset_of(run.begin);
  auto* last = run.last;
  for (auto end = addresses.offset_of(run.end); end > begin && !found.suffices(query);) {
    auto const page = addresses.pages.page_of(base + end - 1);
    if (!page || page->extent.offset < begin) break;
    bool const in_query_window =
        !query.in || (page->extent.offset >= query.within.offset && page->extent.end() <= query.within.end());
    bool const whole = !page->pinned && page->extent.end() <= end;
    while (addresses.offset_of(last->base) >= page->extent.end()) last = last->lower;
    auto const bytes = page->extent.bytes;
    if (whole && in_query_window && bytes >= query.smallest &&
        bytes <= std::min(query.largest, query.max_bytes - found.bytes)) {
      found.bytes += bytes;
      ++found.pages;
      append(found.runs, {&addresses, last, page->extent});
    }
    end = page->extent.offset;
  }
}

std::vector<page_run> idle_pages::find(page_query const& query) {
  found_pages found;
  bool const on_one_list = is_on_one_list(query);
  if (on_one_list)
    parts_.rules.promote_completed(shard_list::search_order{parts_.shards, *parts_.shards.all().front()});
  if (query.any_order && on_one_list) {
    // A buffer may have many thousands of idle pages, and asks for few of them at a time.
    for (bool const nearest : {true, false}) {
      for (auto const& shard : parts_.shards.all()) {
        if ((shard.get() == query.nearest) != nearest) continue;
        shard->ranges.lists().ready().bins().visit_until(smallest_page, [&](block& range) {
          if (may_take(range, query))
            add_pages(found, {range.parent->addresses, &range, range.base, range.end()}, query);
          return found.suffices(query);
        });
      }
    }
  } else {
    for (auto const& run : find_runs(query)) add_pages(found, run, query);
  }
  parts_.shards.all().front()->counters.idle_visits += found.visited_ranges;
  if (found.bytes < query.least) found.runs.clear();
  return std::move(found.runs);
}

std::size_t idle_pages::detach(std::vector<page_run>& idle) noexcept {
  std::size_t returned_bytes = 0;
  auto detached = idle.begin();
  try {
    for (; detached != idle.end(); ++detached) {
      auto& [in, last, extent, count] = *detached;
      auto& shard = *in->shard;
      shard.ranges.make_hole(*last, reinterpret_cast<std::uintptr_t>(in->pages.base()) + extent.offset, extent.bytes);
      shard.reserved -= extent.bytes;
      ++shard.counts.upstream_frees;
      returned_bytes += extent.bytes;
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
  for (auto const& each : runs) sum += each.extent.bytes;
  return sum;
}

void idle_pages::unmap(std::vector<page_run> const& detached) noexcept {
  for (auto const& each : detached) each.in->pages.unmap(each.extent.offset, each.extent.bytes);
}

} // namespace gpumem::detail
