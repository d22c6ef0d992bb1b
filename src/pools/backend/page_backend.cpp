// Maps, moves and unmaps pages, at the end of the mapped addresses or in holes, and reserves the address ranges.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <base/tuning.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>
module gpumem:page_backend.impl;
import :page_backend;
import :backend_parts;
import :backoff;
import :block;
import :chunk_list;
import :error;
import :growth_policy;
import :page_store;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :source_state;
import :stream;
import :stream_timeline;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// The pause between two looks of the library thread at a pool. With a fifth of it, traces with short gaps earned too
// little time for moves: utilization changed by -.01 to +.00.
sync::duration const look_pause = 2 * tuning::max_move_burst;
// About the longest time for which a look unmaps surplus pages: a caller that grows the pool meanwhile waits.
constexpr std::chrono::microseconds longest_release{200};

} // namespace

page_backend::page_backend(pool_upstream& upstream, pool_options const& options, std::optional<device> where,
                           reuse_rules& rules, chunk_list& chunks, shard_list& shards,
                           reserved_observer& watcher) noexcept
    : pool_backend{upstream, options, where, rules, chunks, shards, watcher},
      short_of_addresses_{upstream.pages()->options().address_space != 0}, idle_{parts_},
      move_budget_{options.effort, tuning::max_move_burst, sync::now()} {}

std::size_t page_backend::affordable_pages(sync::time_point now) noexcept {
  if (move_budget_.unlimited()) return SIZE_MAX;
  return static_cast<std::size_t>(std::max(move_budget_.left(now) / price_.median(), 0.0));
}

// Returns the number of pages that a growth by `bytes` makes free of charge. One request for much memory gets no more
// than `page_fraction`, as if the pool had grown step by step.
std::size_t page_backend::unpaid_pages(std::size_t bytes) const noexcept {
  if (parts_.options.effort == 0) return 1;
  auto const pages =
      static_cast<double>(bytes) / static_cast<double>(tuning::unpaid_page) * (tuning::page_cost / price_.median());
  return static_cast<std::size_t>(std::clamp(pages, 1.0, static_cast<double>(tuning::page_fraction)));
}

void page_backend::charge_moves(std::size_t pages) noexcept {
  move_budget_.spend(static_cast<double>(pages) * price_.median());
}

void page_backend::poll_for_moves(allocation_request const& request) {
  parts_.rules.poll_young_events(&request.key, shard_list::search_order{parts_.shards, *request.shard});
  if (affordable_pages() > 0) move_budget_.spend(tuning::move_poll_cost); // a poll without budget is not charged
}

// Gets pages for a request: moves idle pages, or maps new pages and unmaps idle ones of the same size. The pages are
// joined with their free neighbours to one range. Returns where in that range the request's block starts. The result is
// retry() if the range is too small, or after a wait.
attempt<placement> page_backend::grow_pages(allocation_request const& request, bool exact) {
  begin_looks();
  auto const least = request.bytes + (request.alignment - granule);
  if (wants_addresses(*request.shard)) {
    auto const why = add_addresses(*request.shard, request.shard->addresses.empty() ? least : 0);
    if (!why) return attempt<placement>::retry();
    if (growing_shard(request).addresses.empty()) return unexpected<failure>{*why};
  }
  auto& shard = growing_shard(request);
  // With several active shards a move holds up the threads of all of them, and they soon miss the pages again.
  bool const worth_it = parts_.shards.single() || parts_.shards.is_shared(request.bytes) || move_budget_.unlimited();
  bool moving = !exact && worth_it && may_move() && affordable_pages() > 0;
  if (moving) {
    if (auto const place = move(request, false)) return place;
    if (wait_for_own_work(request)) return attempt<placement>::retry();
  }
  auto plan = parts_.growth.plan(request, shard, exact);
  // Unmaps as many bytes of idle pages as the plan will map. Does not do so at the limit, where move_at_limit() moves
  // pages after all other steps have failed. If a page that was unmapped lay beside the hole that the plan fills, its
  // bytes are missing there too. So each round makes a new plan.
  for (std::size_t given = 0; moving && plan && given < plan->bytes && lacking(plan->bytes) == 0;) {
    poll_for_moves(request);
    auto const more = make_room(request, plan, given);
    given += more;
    auto const left = affordable_pages(); // a large page is charged as several of the smallest size
    charge_moves(std::min(left, more / smallest_page));
    moving = more > 0 && left > 0;
    plan = parts_.growth.plan(request, shard, exact);
  }
  if (!plan) {
    auto const why = add_addresses(shard, least);
    return why ? attempt<placement>{unexpected<failure>{*why}} : attempt<placement>::retry();
  }
  if (plan->bytes > parts_.chunks.headroom()) {
    if (parts_.chunks.releasing() == 0) return unexpected<failure>{failure{outcome::exhausted}};
    parts_.lock.wait_for_release(parts_.chunks);
    return attempt<placement>::retry();
  }
  if (next_look_ && !exact && worth_it && may_move()) surplus_ = surplus_within(surplus_ + plan->bytes, plan->beside);
  auto const fresh = map(*plan, fresh_uses(request));
  if (!fresh) return unexpected<failure>{fresh.error()};
  auto const place = placement_in(**fresh, request);
  return place ? attempt<placement>{place} : attempt<placement>::retry();
}

bool page_backend::may_move() const noexcept {
  if (parts_.options.cross_stream == reuse_policy::ordered) return false;
  return std::ranges::any_of(parts_.shards.all(), [](auto const& each) {
    assert_all_shards_held();
    return each->ranges.free_bytes() >= smallest_page;
  });
}

// Waits until the work of the request's stream is complete, so that pages that the stream has freed can move. Without
// the wait, a program that runs ahead of the device would get new pages. Does not wait if other streams use free
// memory, since the caller could not give work to them meanwhile. The wait is charged to the time budget for moves, and
// leaves enough of the budget for the moves themselves. Returns whether it unlocked the shards: the caller must then
// search again.
bool page_backend::wait_for_own_work(allocation_request const& request) {
  auto& timeline = request.key.identity().timeline();
  if (!request.key.context().may_wait() || !request.key.identity().has_handle()) return false;
  if (given_up_.timeline && !given_up_.completed()) return false;
  shard_list::search_order const among{parts_.shards, *request.shard};
  auto const open = reuse_rules::streams_in_use(false, among);
  if (open.size() != 1 || open.front() != &timeline) return false;
  auto const pages = pages_in_use_by(timeline, request);
  auto const begin = sync::now();
  auto const for_moves = static_cast<double>(pages) * price_.median();
  auto const longest = move_budget_.unlimited() ? tuning::max_move_burst : move_budget_.left(begin) - for_moves;
  if (pages == 0 || longest <= time_budget::nanoseconds{0}) return false;
  timeline.cover(request.key.identity().handle()); // records an event after the stream's last frees
  if (!reuse_rules::streams_in_use(true, among).empty()) return false;
  stream_use const awaited{&timeline, timeline.newest_recorded()};
  auto const end = begin + std::chrono::duration_cast<sync::duration>(longest);
  {
    all_shards_unlock const during{parts_.shards};
    backoff pause{tuning::max_poll_pause};
    for (auto now = begin; !awaited.completed() && now < end && !parts_.lost(); now = sync::now()) {
      timeline.poll();
      if (!awaited.completed()) sync::sleep_for(std::min(pause.next(), end - now));
    }
  }
  if (!awaited.completed()) given_up_ = awaited;
  move_budget_.spend(sync::now() - begin);
  return true;
}

// Returns the number of pages that can move once the stream's work is complete; 0 if they would replace less than half
// of the new pages' bytes.
std::size_t page_backend::pages_in_use_by(stream_timeline const& stream, allocation_request const& request) {
  auto const plan = parts_.growth.plan(request, growing_shard(request), false);
  if (!plan) return 0;
  page_query query{.wanted = plan->bytes,
                   .least = lacking(plan->bytes),
                   .excluded = plan->beside,
                   .largest = std::max(largest_page, parts_.growth.unit())};
  auto const idle = idle_pages::bytes(idle_.find(query));
  query.in_use_by = &stream;
  auto const found = idle_.find(query);
  return idle_pages::bytes(found) >= idle + plan->bytes / 2 ? idle_pages::count(found) : 0;
}

placement page_backend::move_at_limit(allocation_request const& request) {
  if (request.loan || !may_move()) return {};
  parts_.lock.wait();
  return move(request, true);
}

// Returns the uses of new memory. Memory for a stream counts as used by that stream up to epoch 0. Epochs begin at 1,
// so this use is complete. Because of the use, the rest of the memory goes to the free list of that stream, and serves
// its next requests.
stream_uses page_backend::fresh_uses(allocation_request const& request) const noexcept {
  return parts_.rules.needs_host(request.key) ? stream_uses{}
                                              : stream_uses{stream_use{&request.key.identity().timeline(), 0}};
}

// Joins the new range `fresh` with free neighbours that the stream may use. Returns where in the joined range the
// request's block starts; an empty placement if that range is too small.
placement page_backend::placement_in(block& fresh, allocation_request const& request) const {
  auto& ranges = fresh.parent->shard->ranges.free_ranges();
  auto* range = &fresh;
  auto* const before = range->lower;
  bool const merges = parts_.growth.usable(before, request.key);
  if (merges && ranges.merge(*before)) range = before;
  if (parts_.growth.usable(range->upper, request.key)) ranges.merge(*range);
  std::size_t offset = 0;
  if (!fits(*range, request.bytes, request.alignment, offset)) return {};
  return {range, offset, reuse_tier::none};
}

// Moves idle pages of all shards to where memory is missing. A move costs two thirds of the time to unmap a page and
// make another, or less if the page is large. With `at_limit` the time for moves is not bounded: without them the pool
// would have to unmap pages. Returns an empty placement if the pages are not enough.
placement page_backend::move(allocation_request const& request, bool at_limit) {
  auto& shard = growing_shard(request);
  if (!at_limit) poll_for_moves(request);
  auto const plan = parts_.growth.plan(request, shard, false);
  if (!plan) return {};
  auto& into = plan->in->pages;
  auto const end = into.mapped_end();
  auto const available = plan->hole ? plan->hole->bytes : into.address_space() - end;
  auto idle = idle_.find({.wanted = plan->bytes,
                          .least = lacking(plan->bytes),
                          .max_bytes = available,
                          .excluded = plan->beside,
                          .nearest = &shard,
                          .largest = std::max(largest_page, parts_.growth.unit()),
                          .smallest = at_limit ? 0 : parts_.growth.min_moved_page(shard.reserved),
                          .max_pages = at_limit ? SIZE_MAX : affordable_pages()});
  if (idle.empty()) return {};
  charge_moves(std::min(idle_pages::count(idle), affordable_pages()));
  std::vector<page_origin> runs(idle.size());
  auto const given = idle_.detach(idle);
  auto const origin = [](page_run const& each) { return page_origin{&each.in->pages, each.extent}; };
  runs.erase(std::ranges::transform(idle, runs.begin(), origin).out, runs.end());
  expected<page_extent, failure> moved = page_extent{};
  sync::duration spent{};
  parts_.lock.begin();
  {
    upstream_call const during{parts_.shards};
    auto const begin = sync::now();
    moved = into.move(runs, plan->hole ? plan->offset(given) : end);
    spent = sync::now() - begin;
    if (!moved) idle_pages::unmap(idle);
  }
  if (moved) price_.add(spent, idle_pages::count(idle));
  shard.counters.page_moves += bool{moved};
  parts_.chunks.end_release(given);
  auto const there = accept(*plan->in, moved, fresh_uses(request));
  return there ? placement_in(**there, request) : placement{};
}

// Maps pages while the shards are unlocked and the growth lock keeps other threads from changing pages. Maps them in
// the hole of the plan, or after all mapped addresses. If the device has less than the plan's `bytes`, maps its
// `least`. Returns the range that holds the pages.
expected<block*, failure> page_backend::map(growth_plan const& plan, stream_uses const& uses, loan_terms const* loan) {
  auto& into = plan.in->pages;
  auto const unpaid = unpaid_pages(plan.bytes), most = std::max(affordable_pages(), unpaid);
  auto const before = into.pages();
  auto const reserved = plan.in->shard->reserved;
  auto const map_bytes = [&](std::size_t wanted) {
    auto const at = plan.hole ? plan.offset(wanted) : into.mapped_end();
    return into.map(at, wanted, loan ? loan->page : parts_.growth.page_size(reserved, wanted, most));
  };
  expected<page_extent, failure> made = page_extent{};
  sync::duration spent{};
  parts_.lock.begin();
  {
    upstream_call const during{parts_.shards};
    auto begin = sync::now();
    made = map_bytes(plan.bytes);
    bool const too_much =
        !made && (made.error().reason == outcome::exhausted || made.error().reason == outcome::too_large);
    if (too_much && plan.bytes > plan.least) {
      begin = sync::now();
      made = map_bytes(plan.least);
    }
    spent = sync::now() - begin;
  }
  auto const pages = into.pages() - std::min(before, into.pages());
  if (!loan) { // its pages may be larger, and then cost more
    price_.add(spent, pages);
    charge_moves(std::min(pages - std::min(pages, unpaid), affordable_pages()));
  }
  return accept(*plan.in, made, uses);
}

// Adds pages that were mapped or moved while the shards were unlocked, and gives up the growth lock. Returns the range
// that holds the pages.
expected<block*, failure> page_backend::accept(address_range& into, expected<page_extent, failure> const& made,
                                               stream_uses const& uses) {
  if (made) {
    try {
      auto& added = add(into, *made, uses);
      parts_.lock.end();
      return &added;
    } catch (std::bad_alloc const&) {
      {
        upstream_call const during{parts_.shards};
        into.pages.unmap(made->offset, made->bytes);
      }
      parts_.lock.end();
      throw;
    }
  }
  parts_.lock.end();
  parts_.note_failure(made.error());
  return unexpected<failure>{made.error()};
}

// Adds mapped pages to their shard as a free range that has `uses`. If it throws std::bad_alloc, nothing is changed.
block& page_backend::add(address_range& into, page_extent const& extent, stream_uses const& uses) {
  auto& shard = *into.shard;
  auto const address = reinterpret_cast<std::uintptr_t>(into.pages.base()) + extent.offset;
  block* added = nullptr;
  if (!into.mapped) {
    // A borrower may map pages before these later, so its chunk begins where its addresses do.
    auto const gap = shard.lends ? extent.offset : 0;
    auto& parent = parts_.chunks.add(reinterpret_cast<void*>(address - gap), gap + extent.bytes, extent.bytes);
    try {
      added = &shard.ranges.add(parent, uses);
      if (shard.lends) parent.begin_tree();
      if (gap > 0) added = shard.ranges.make_hole(*added, parent.base, gap).upper;
    } catch (...) {
      if (parent.first) shard.ranges.remove(parent);
      parts_.chunks.erase(parent);
      parts_.chunks.begin_release(extent.bytes);
      parts_.chunks.end_release(extent.bytes);
      throw;
    }
    parent.shard = &shard;
    parent.addresses = &into;
    into.mapped = &parent;
  } else {
    auto& parent = *into.mapped;
    if (address < parent.end()) {
      auto& hole = parent.root ? *parent.find_containing(reinterpret_cast<void const*>(address))
                               : shard.ranges.holes().at(address);
      added = &shard.ranges.fill_hole(hole, address - hole.base, extent.bytes, uses);
    } else {
      // The pages may begin after the end of the chunk, for example where the memory of a new stream is to grow.
      // The addresses between become a hole.
      auto const gap = address - parent.end();
      added = &shard.ranges.extend(parent, gap + extent.bytes, uses);
      if (gap > 0) added = shard.ranges.make_hole(*added, address - gap, gap).upper;
    }
    parts_.chunks.add_reserved(extent.bytes);
  }
  parts_.count_growth(shard, extent.bytes);
  return *added;
}

std::size_t page_backend::release(std::size_t keep) noexcept {
  auto const excess = parts_.chunks.reserved() - std::min(keep, parts_.chunks.reserved());
  auto const released = release_idle({.wanted = excess, .max_bytes = excess});
  drop_closed_ranges();
  return released + pool_backend::release(keep);
}

void page_backend::release_for(allocation_request const& request) {
  parts_.lock.wait(); // until no other thread changes pages
  if (request.loan) {
    release_for_loan(request);
    return pool_backend::release_for(request);
  }
  auto const& shard = growing_shard(request);
  auto plan = parts_.growth.plan(request, shard, true);
  // Without addresses for a plan, unmaps pages until a hole is large enough.
  while (!plan && make_room(request, plan, 0) > 0) plan = parts_.growth.plan(request, shard, true);
  if (plan) make_room(request, plan, std::min(plan->bytes, parts_.chunks.headroom()));
  if (!plan && parts_.upstream.chunks_serve_as_pages()) release_idle({.wanted = request.bytes + request.alignment});
  pool_backend::release_for(request);
}

// Returns by how much `bytes` exceeds the headroom, the bytes that may still be reserved.
std::size_t page_backend::lacking(std::size_t bytes) const noexcept {
  return bytes - std::min(bytes, parts_.chunks.headroom());
}

std::size_t page_backend::release_idle(page_query const& query) noexcept {
  parts_.lock.wait();
  std::vector<page_run> idle;
  try {
    idle = idle_.find(query);
  } catch (std::bad_alloc const&) { return 0; }
  if (idle.empty()) return 0;
  auto const given = idle_.detach(idle);
  parts_.lock.begin();
  {
    upstream_call const during{parts_.shards};
    idle_pages::unmap(idle);
  }
  parts_.chunks.end_release(given);
  parts_.lock.end();
  return given;
}

// Unmaps idle pages, so that the pool can map other pages for a request. Without a plan it unmaps enough to make a hole
// for the request. Keeps the range that the plan extends. `given`: bytes that earlier calls have unmapped for the
// request. Returns the bytes that this call has unmapped.
std::size_t page_backend::make_room(allocation_request const& request, std::optional<growth_plan> const& plan,
                                    std::size_t given) {
  auto const beyond =
      parts_.chunks.reserved() -
      std::min(parts_.chunks.reserved(), parts_.chunks.max_reserved()); // more than 0 if the limit was lowered
  auto const needed = plan ? plan->bytes : request.bytes, missing = plan ? needed - given : needed;
  auto const least = beyond > 0 ? 0 : lacking(needed);
  auto const more = release_idle({.wanted = missing + beyond,
                                  .least = least,
                                  .excluded = plan ? plan->beside : 0,
                                  .nearest = &growing_shard(request),
                                  .any_order = request.loan != nullptr,
                                  .only_nearest = !plan});
  request.shard->counters.page_unmaps += more > 0;
  return more;
}

// Begins the looks, unless they go on. Until then no look could see whether the pool worked, so that time earns none.
void page_backend::begin_looks() noexcept {
  if (next_look_ || parts_.options.effort == 0 || move_budget_.unlimited()) return;
  auto const now = sync::now();
  move_budget_.pause(now);
  next_look_ = now + look_pause;
}

// Returns the bytes of idle pages, `bytes` at most, outside the range at `excluded`.
std::size_t page_backend::surplus_within(std::size_t bytes, std::uintptr_t excluded) {
  return idle_pages::bytes(idle_.find({.wanted = bytes, .max_bytes = bytes, .excluded = excluded}));
}

// If calls came since the last look, the pool has worked until that look at least.
void page_backend::look(std::uint64_t calls) noexcept {
  auto const now = sync::now();
  if (!next_look_ || now < *next_look_) return;
  bool const paused = std::exchange(seen_calls_, calls) == calls;
  if (paused) {
    move_budget_.pause(now);
  } else {
    move_budget_.left(*next_look_ - look_pause);
  }
  auto const released = surplus_ > 0 ? release_surplus(paused) : 0;
  next_look_ = now + (paused && released > 0 ? tuning::max_pass_pause : look_pause);
  if (paused && surplus_ == 0) next_look_.reset();
}

// Unmaps surplus pages, for about `longest_release` at most, but at least one. While the pool works, the saved time
// pays for them, since callers may soon need them again. Surplus pages that are no longer idle are in use, and count no
// more. Returns the bytes that it has unmapped.
std::size_t page_backend::release_surplus(bool paused) noexcept {
  parts_.lock.wait();
  try {
    shard_list::search_order const among{parts_.shards, *parts_.shards.all().front()};
    if (paused) parts_.rules.poll_streams(nullptr, among);
    auto const idle = surplus_within(surplus_);
    if (!paused || !reuse_rules::may_complete(among)) surplus_ = idle;
    auto const paid = paused ? SIZE_MAX : affordable_pages(*next_look_ - look_pause);
    auto const at_once = std::max(static_cast<std::size_t>(longest_release / price_.median()), std::size_t{1});
    page_query const query{.wanted = idle, .max_bytes = idle, .max_pages = std::min(paid, at_once)};
    if (!paused) charge_moves(idle_pages::count(idle_.find(query)));
    auto const released = release_idle(query);
    surplus_ -= std::min(surplus_, released);
    return released;
  } catch (std::bad_alloc const&) { return 0; }
}

// Returns the shard that grows for the request: the thread's own, or the first one that has addresses if the own has
// none since the driver grants none.
pool_shard& page_backend::growing_shard(allocation_request const& request) const noexcept {
  if (!request.shard->addresses.empty()) return *request.shard;
  auto const all = parts_.shards.all();
  auto const found = std::ranges::find_if(all, [](auto const& each) {
    assert_all_shards_held();
    return !each->addresses.empty() && !each->lends;
  });
  return found == all.end() ? *request.shard : **found;
}

// Returns whether the shard is to get a further address range before it grows.
bool page_backend::wants_addresses(pool_shard const& in) const {
  if (in.addresses.empty()) return true;
  return !short_of_addresses_ && growth_policy::is_short_of_addresses(in, parts_.upstream.pages()->most_addresses());
}

// Reserves a further address range of at least `least` bytes for the shard, which is unlocked meanwhile. With 0, does
// not reserve less than the pool wants: a refusal leaves the addresses to shards that need them. Returns null if it
// did.
std::optional<failure> page_backend::add_addresses(pool_shard& into, std::size_t least) {
  auto const last = into.addresses.empty() ? 0 : into.addresses.back()->pages.address_space();
  std::optional<failure> why;
  auto& pages = *parts_.upstream.pages();
  if (last != 0 && pages.options().address_space != 0) return no_addresses(outcome::too_large, 0);
  auto const limit = parts_.chunks.limit();
  parts_.lock.begin();
  try {
    auto const unit = parts_.growth.unit();
    if (least > pages.most_addresses()) throw_cuda_error(CUDA_ERROR_OUT_OF_MEMORY, "gpumem: too many addresses");
    into.addresses.reserve(into.addresses.size() + 1);
    std::unique_ptr<address_range> made;
    {
      upstream_call const during{parts_.shards};
      made = parts_.upstream.reserve_addresses(into, last, limit, (least + unit - 1) / unit * unit);
    }
    if (made->pages.address_space() <= last) short_of_addresses_ = true;
    into.add(std::move(made));
  } catch (cuda_error const& e) {
    why = refusal_of(static_cast<CUresult>(e.status()), least);
    if (why->reason == outcome::exhausted) {
      why = no_addresses(outcome::exhausted, least);
      short_of_addresses_ = true;
    }
  } catch (std::bad_alloc const&) { why = no_host_memory(least); }
  parts_.lock.end();
  if (why) parts_.note_failure(*why);
  return why;
}

virtual_pages* page_backend::pages_of(void const* pointer) {
  parts_.lock.wait();
  auto const* const parent = parts_.chunks.find_containing(pointer);
  return parent && parent->addresses ? &parent->addresses->pages : nullptr;
}

expected<block*, failure> page_backend::reserve_pages(std::size_t bytes, pool_shard& into) {
  auto const fits = [bytes](address_range const& in) {
    return bytes <= in.pages.address_space() - in.pages.mapped_end();
  };
  auto found = std::ranges::find_if(into.addresses, [&](auto const& each) { return fits(*each); });
  if (found == into.addresses.end()) {
    if (auto const why = add_addresses(into, bytes)) return unexpected<failure>{*why};
    found = std::prev(into.addresses.end());
  }
  return map({found->get(), std::nullopt, bytes, bytes}, {});
}

} // namespace gpumem::detail
