// A pool and its pages: growth behind what is free at the end, or in holes, and giving back what is wholly free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <ranges>
#include <utility>
#include <vector>
module gpumem:pool_pages.impl;
import :pool_engine;
import :pool_order;
import :block;
import :chunks;
import :cuda;
import :device;
import :error;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :tags;
import :virtual_pages;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t spare_fraction = 8;
inline constexpr std::size_t limit_pages = 4096;
inline constexpr std::size_t growth_pages = 4;
// Where memory is spent on speed.
inline constexpr std::size_t generous_pages = 2;
inline constexpr std::size_t largest_generous_page = 8 * largest_page;
// Of what is mapped, as of fast pools 1/128: larger pages left more of recorded traces unused.
inline constexpr std::size_t compact_pages = 192;

std::size_t offset_of(pool_shard const& in, std::uintptr_t address) {
  return address - reinterpret_cast<std::uintptr_t>(in.pages->base());
}

std::size_t round_up(std::size_t bytes, std::size_t step) noexcept { return (bytes + step - 1) / step * step; }

std::size_t smallest_of(virtual_pages const& of) noexcept { return std::max(smallest_page, of.granularity()); }
std::size_t smallest_of(pool_shard const& in) noexcept { return in.pages ? smallest_of(*in.pages) : smallest_page; }

std::size_t whole_pages(virtual_pages const& of, std::size_t bytes) noexcept {
  return bytes / of.granularity() * of.granularity();
}

// From the top of a range down: what lies side by side is one run.
void append(std::vector<page_run>& runs, page_run const& next) {
  if (!runs.empty() && runs.back().range == next.range && runs.back().where.offset == next.where.end()) {
    runs.back().where = {next.where.offset, next.where.bytes + runs.back().where.bytes};
  } else {
    runs.push_back(next);
  }
}

} // namespace

// Maps what is missing and grants it together with what is free before it. `changed`: others were faster.
pool_engine::growth_result pool_engine::grow_pages(pool_request const& what, shard_locks& held, bool exact,
                                                   expected<void*, failure>& result) {
  auto& own = *what.own;
  auto bytes = pages_for(what, own, exact);
  if (options_.growth == growth::compact && !exact) {
    make_way(what, bytes, held);
    bytes = pages_for(what, own, exact);
  }
  auto least = pages_for(what, own, true);
  if (bytes > chunks_.room()) bytes = least;
  std::optional<std::size_t> gap;
  if (bytes > chunks_.room()) {
    if (auto const found = exact ? gap_for(what, own) : std::nullopt; found) {
      gap = found->offset;
      bytes = least = found->bytes;
    }
  }
  if (bytes > chunks_.room()) {
    if (chunks_.leaving() == 0) return growth_result::failed;
    wait_for_return(held);
    return growth_result::changed;
  }
  auto const fresh = draw_pages(own, gap, bytes, least, held);
  if (!fresh) {
    auto const& why = fresh.error();
    result = unexpected<failure>{
        failure{why.what == outcome::too_large ? outcome::exhausted : why.what, why.code, what.requested}};
    return growth_result::failed;
  }
  auto* range = *fresh;
  auto* const before = range->lower;
  bool const joins = usable(before, what.key);
  if (joins && own.ranges.join(*before)) range = before;
  if (gap && usable(range->upper, what.key)) own.ranges.join(*range);
  std::size_t offset = 0;
  if (!fits(*range, what.bytes, what.alignment, offset)) return growth_result::changed;
  result = grant(what, {range, offset, rung::none});
  return growth_result::granted;
}

// Free, and the stream may use it at once.
bool pool_engine::usable(block const* range, stream_key const& key) const {
  return range && range->is_free() && order_.classify(range->tags, key, rung::completed) != rung::none;
}

// The range at the end of what is mapped, if the stream may use it at once.
block* pool_engine::usable_end(pool_request const& what, pool_shard const& in) const {
  auto* const last = in.paged ? in.paged->last : nullptr;
  if (!usable(last, what.key)) return nullptr;
  return offset_of(in, last->end()) == in.pages->mapped_end() ? last : nullptr;
}

// How much to map for a request: what is missing behind the usable end, in whole pages.
std::size_t pool_engine::pages_for(pool_request const& what, pool_shard const& in, bool exact) const {
  auto const need = what.bytes + (what.alignment - granule);
  auto const* const end = usable_end(what, in);
  auto const missing = need - std::min(need - granule, end ? end->bytes : 0);
  auto const page = exact || !in.pages ? smallest_of(in) : least_page(*in.pages);
  auto wanted = missing;
  // Shards of many threads have some to spare: what one lacks it stops all of them for.
  if (!exact && !shards_.single()) wanted = std::max(wanted, in.reserved / spare_fraction);
  // Where memory is spent the shard becomes twice as large, if that is not too much.
  if (!exact) wanted = std::max(wanted, std::min(rather_grows(what), in.reserved));
  return wanted > SIZE_MAX - page ? missing : round_up(wanted, page);
}

// A hole between free memory, for which less is missing than at the end: what was large before has left one. The least
// that is to be mapped in it, at its beginning or at its end, and is within the limit.
std::optional<page_extent> pool_engine::gap_for(pool_request const& what, pool_shard const& in) const {
  auto const need = what.bytes + (what.alignment - granule);
  std::optional<page_extent> best;
  for (auto const* at = in.paged ? in.paged->first : nullptr; at; at = at->upper) {
    if (at->now() != block_state::hole) continue;
    auto const below = usable(at->lower, what.key) ? at->lower->bytes : 0;
    auto const above = usable(at->upper, what.key) ? at->upper->bytes : 0;
    if (below + at->bytes + above < need) continue;
    auto const beside = std::max(below, above);
    auto const missing = std::min(round_up(need - std::min(need - granule, beside), smallest_of(in)), at->bytes);
    if (missing > chunks_.room() || (best && missing >= best->bytes)) continue;
    best = page_extent{offset_of(in, above > below ? at->end() - missing : std::uintptr_t{at->base}), missing};
  }
  return best;
}

// Under a limit pages give way to others: of large ones few are wholly free. Where nothing presses they are fewer:
// each costs the same, whatever its size.
std::size_t pool_engine::page_size(virtual_pages const& of, std::size_t bytes, bool generous) const noexcept {
  auto const next = least_page(of);
  if (chunks_.limit()) { return std::clamp(whole_pages(of, chunks_.limit() / limit_pages), smallest_of(of), next); }
  if (options_.growth == growth::compact) return next;
  auto const pages = generous ? generous_pages : growth_pages;
  auto const largest = std::max(next, generous ? largest_generous_page : largest_page);
  return std::clamp(whole_pages(of, bytes / pages), next, largest);
}

// What growth is a multiple of.
std::size_t pool_engine::least_page(virtual_pages const& of) const noexcept {
  auto const next = of.next_page();
  if (options_.growth != growth::compact) return next;
  return std::clamp(whole_pages(of, of.mapped_bytes() / compact_pages), smallest_of(of), next);
}

// Maps in the gap or at the end, without the lock, and only while nobody else does; where the device has not so much,
// `least`. The range that holds it.
expected<block*, failure> pool_engine::draw_pages(pool_shard& into, std::optional<std::size_t> gap, std::size_t bytes,
                                                  std::size_t least, shard_locks& held) {
  bool const generous = is_generous(into);
  growing_ = true;
  held.unlock();
  expected<page_extent, failure> made = unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  try {
    if (!into.pages) into.pages = upstream_->make_pages();
    auto const map = [&](std::size_t wanted) {
      auto const end = into.pages->mapped_end();
      // Holes are filled when the addresses come to an end: at the end ranges can grow.
      bool const fits_behind = wanted <= into.pages->addresses() - end;
      auto const at = gap ? *gap : fits_behind ? end : into.pages->place(wanted).value_or(end);
      return into.pages->map(at, wanted, page_size(*into.pages, wanted, generous));
    };
    made = map(bytes);
    bool const too_much = !made && (made.error().what == outcome::exhausted || made.error().what == outcome::too_large);
    if (too_much && bytes > least) made = map(least);
  } catch (cuda_error const& e) {
    made = unexpected<failure>{failure{outcome::driver_error, static_cast<int>(e.status()), bytes}};
  } catch (std::bad_alloc const&) { made = unexpected<failure>{failure{outcome::exhausted, 0, bytes}}; }
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

void pool_engine::end_growth() noexcept {
  growing_ = false;
  changed_.notify_all();
}

// Every stream may use them at once. Throws std::bad_alloc, and nothing is changed.
block& pool_engine::add_pages(pool_shard& into, page_extent const& where) {
  auto const address = reinterpret_cast<std::uintptr_t>(into.pages->base()) + where.offset;
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
      if (gap > 0) {
        auto const all = added->bytes;
        auto& hole = into.ranges.carve(*added, all - where.bytes - gap, gap);
        added = hole.upper;
      }
    }
    chunks_.note_more(where.bytes);
  }
  note_growth(into, where.bytes);
  return *added;
}

// Ranges side by side are one where nobody uses them, or, with `reuse::own`, where nobody does any more: a page may
// reach from one into the next.
void pool_engine::join_complete(pool_shard& in, bool over) {
  if (!in.paged) return;
  auto const complete = [over](block const& each) { return over || each.tags.completed(); };
  if (options_.cross_stream == reuse::own && !closed_) return in.ranges.join_all(complete);
  for (auto* at = in.paged->last; at; at = at->lower) {
    if (at->is_free() && !at->tags.empty() && complete(*at)) at = &in.ranges.complete(*at);
  }
}

// Whole pages of free memory of which the host has seen every use complete, out of the largest ranges first; together
// so many bytes at most, or, to `reach` them, a page more. Not those of `spared`.
std::vector<page_run> pool_engine::idle_pages(std::size_t wanted, bool reach, block const* spared) {
  std::vector<std::pair<pool_shard*, block*>> ranges;
  bool const over = closed_ && lost();
  for (auto const& in : shards_.all()) {
    join_complete(*in, over);
    for (auto* at = in->paged ? in->paged->last : nullptr; at; at = at->lower) {
      if (!at->is_free() || at->bytes < smallest_page || at == spared || !(over || at->tags.completed())) continue;
      ranges.emplace_back(in.get(), at);
    }
  }
  std::ranges::sort(ranges, [](auto const& a, auto const& b) {
    return a.second->bytes != b.second->bytes ? a.second->bytes > b.second->bytes : a.second->base < b.second->base;
  });
  std::vector<page_run> found;
  std::size_t sum = 0;
  for (auto const& [in, range] : ranges) {
    auto const base = reinterpret_cast<std::byte const*>(in->pages->base());
    auto const begin = offset_of(*in, range->base);
    for (auto end = offset_of(*in, range->end()); end > begin && sum < wanted;) {
      auto const page = in->pages->page_of(base + end - 1);
      if (!page || page->where.offset < begin) break;
      bool const whole = !page->pinned && page->where.end() <= end;
      if (whole && (reach || page->where.bytes <= wanted - sum)) {
        sum += page->where.bytes;
        append(found, {in, range, page->where});
      }
      end = page->where.offset;
    }
  }
  return found;
}

// Out of the ranges first, then unmapped without the lock; how many bytes.
std::size_t pool_engine::give_back_pages(std::vector<page_run> const& idle, shard_locks& held) noexcept {
  std::size_t given = 0;
  auto carved = idle.begin();
  try {
    for (; carved != idle.end(); ++carved) {
      auto& [in, range, where] = *carved;
      in->ranges.carve(*range, where.offset - offset_of(*in, range->base), where.bytes);
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
  set_caching();
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

std::size_t pool_engine::give_back_idle(std::size_t wanted, bool reach, block const* spared,
                                        shard_locks& held) noexcept {
  while (growing_) held.wait(changed_);
  try {
    auto const idle = idle_pages(wanted, reach, spared);
    return idle.empty() ? 0 : give_back_pages(idle, held);
  } catch (std::bad_alloc const&) { return 0; }
}

// Pages that are wholly free give way to others for a request.
void pool_engine::make_way(pool_request const& what, std::size_t bytes, shard_locks& held) {
  order_.learn_completion(nullptr, everywhere());
  what.own->paths.made_way += give_back_idle(bytes, true, usable_end(what, *what.own), held) > 0;
}

// Those in which the pointer lies, at rest; null of chunks, and of what is not the pool's.
virtual_pages* pool_engine::pages_of(void const* pointer, shard_locks& held) {
  while (growing_) held.wait(changed_);
  auto const* const home = chunks_.covering(pointer);
  return home ? home->shard->pages.get() : nullptr;
}

bool pool_engine::pin(void const* pointer, std::size_t bytes) {
  shard_locks held{shards_};
  if (auto* const pages = pages_of(pointer, held)) return pages->pin(pointer, bytes);
  // A chunk stays as long as anything lives in it.
  auto const* const home = chunks_.covering(pointer);
  return home && bytes > 0 && bytes <= home->end() - reinterpret_cast<std::uintptr_t>(pointer);
}

void pool_engine::unpin(void const* pointer, std::size_t bytes) {
  shard_locks held{shards_};
  if (auto* const pages = pages_of(pointer, held)) pages->unpin(pointer, bytes);
}

expected<int, failure> pool_engine::export_page(void const* pointer) {
  shard_locks held{shards_};
  if (auto* const pages = pages_of(pointer, held)) return pages->export_page(pointer);
  return unexpected<failure>{failure{outcome::invalid_argument, 0, 0}};
}

} // namespace gpumem::detail
