// A pool and its upstream: growth, giving back, and the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
module gpumem:pool_grow.impl;
import :pool_engine;
import :pool_order;
import :block;
import :chunks;
import :cuda;
import :device;
import :driver;
import :error;
import :executor;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr unsigned most_passes = 1000; // about a second
inline constexpr auto shortest_pause = 20us;
inline constexpr auto longest_pause = 1ms;

// The process is exiting: the library thread must come to an end.
std::atomic<bool> leaving_driver{false};
void note_leaving() noexcept { leaving_driver.store(true, std::memory_order_relaxed); }

} // namespace

bool leaving() noexcept {
  static bool const once = [] {
    at_driver_exit(note_leaving); // after the library thread's own registration, so it runs before that is joined
    return true;
  }();
  static_cast<void>(once);
  return leaving_driver.load(std::memory_order_relaxed);
}

// Draws memory and grants from it. `changed`: another thread's growth or return has ended, look again.
pool_engine::growth_result pool_engine::grow(pool_request const& what, shard_locks& held, bool exact,
                                             expected<void*, failure>& result) {
  result = unexpected<failure>{failure{outcome::exhausted, 0, what.requested}};
  if (growing_) {
    while (growing_) held.wait(changed_);
    return growth_result::changed;
  }
  try {
    auto const grown =
        upstream_->paged() ? grow_pages(what, held, exact, result) : grow_chunk(what, held, exact, result);
    if (grown != growth_result::failed) sweep_beyond_threshold();
    return grown;
  } catch (...) {
    sweep_beyond_threshold();
    throw;
  }
}

// Nothing stays near a thread there. Not before what has grown is granted: a neighbour that arrives may make it a part
// of itself.
void pool_engine::sweep_beyond_threshold() noexcept {
  if (!magazines_.allowed()) sweep();
}

pool_engine::growth_result pool_engine::grow_chunk(pool_request const& what, shard_locks& held, bool exact,
                                                   expected<void*, failure>& result) {
  auto const need = what.bytes + (what.alignment - granule);
  auto bytes = chunks_.growth(need, what.own->reserved);
  if (bytes == 0 && chunks_.leaving() > 0) {
    wait_for_return(held);
    return growth_result::changed;
  }
  if (bytes == 0) return growth_result::failed;
  if (exact) bytes = need;
  auto const fresh = draw_chunk(what.key, *what.own, bytes, need, held);
  if (!fresh) {
    auto const& why = fresh.error();
    result = unexpected<failure>{
        failure{why.what == outcome::too_large ? outcome::exhausted : why.what, why.code, what.requested}};
    return growth_result::failed;
  }
  result = grant_fresh(what, **fresh);
  return growth_result::granted;
}

// Draws without the lock, and only while nobody else does; where upstream has not so much, `least`. A chunk, wholly
// free.
expected<block*, failure> pool_engine::draw_chunk(stream_key const& key, pool_shard& into, std::size_t bytes,
                                                  std::size_t least, shard_locks& held) {
  growing_ = true;
  held.unlock();
  auto drawn = upstream_->draw(key, bytes);
  if (!drawn && bytes > least) drawn = upstream_->draw(key, bytes = least);
  held.lock();
  growing_ = false;
  changed_.notify_all();
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

void pool_engine::wait_for_return(shard_locks& held) {
  auto const before = chunks_.leaving();
  while (chunks_.leaving() == before) held.wait(changed_);
}

std::size_t pool_engine::reserve(std::size_t bytes) {
  auto const fail = [&](failure const& why) { throw_failure({why.what, why.code, bytes}); };
  shard_locks held{shards_};
  if (bytes > (chunks_.limit() ? chunks_.limit() : PTRDIFF_MAX)) fail({outcome::too_large});
  for (;;) {
    while (growing_) held.wait(changed_);
    auto const wanted = std::min((bytes + granule - 1) / granule * granule, chunks_.most());
    if (wanted <= chunks_.reserved()) return 0;
    auto const missing = wanted - chunks_.reserved();
    if (missing > chunks_.room()) { // because of what has not left yet
      wait_for_return(held);
      continue;
    }
    auto const fresh = upstream_->paged() ? draw_pages(shards_.own(), std::nullopt, missing, missing, held)
                                          : draw_chunk(stream_key::host(), shards_.own(), missing, missing, held);
    if (!fresh) fail(fresh.error());
    sweep_beyond_threshold();
    return missing;
  }
}

void pool_engine::set_limit(std::size_t bytes) {
  check_limit(bytes);
  shard_locks const held{shards_};
  chunks_.set_limit(bytes);
  set_caching();
}

// Upstream's memory is valid in the order in which it was given.
block& pool_engine::add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes) {
  bool const ordered = upstream_->stream_ordered() && !key.is_host();
  auto& added = chunks_.add(base, bytes);
  try {
    auto& fresh = into.ranges.add(added, ordered ? tag_set{{&key.order(), key.order().now()}} : tag_set{});
    added.shard = &into;
    note_growth(into, bytes);
    return fresh;
  } catch (...) {
    auto const lost = chunks_.begin_leave(added);
    chunks_.end_leave(lost.bytes);
    throw;
  }
}

void pool_engine::note_growth(pool_shard& into, std::size_t bytes) noexcept {
  into.reserved += bytes;
  into.looks.note_growth();
  ++into.counts.growths;
  set_caching();
}

// A chunk out of another thread's shard, wholly free and one, that the stream may use at once.
pool_place pool_engine::adopt_chunk(pool_request const& what) {
  if (upstream_->paged()) return {}; // they belong to the addresses where they are
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

bool pool_engine::idle_and_complete(chunk const& home) noexcept {
  // On a lost device nothing runs any more and nothing is seen to complete: a closed pool returns what it owes.
  bool complete = true;
  bool const over = closed_ && lost();
  range_map::visit(
      home, [&](block const& each) { complete = complete && each.is_free() && (over || each.tags.completed()); });
  return complete;
}

// Chunks without live blocks whose every use the host has seen complete go back; how many bytes did.
std::size_t pool_engine::give_back(std::size_t keep, shard_locks& held) noexcept {
  if (upstream_->paged()) {
    return give_back_idle(chunks_.reserved() - std::min(keep, chunks_.reserved()), false, nullptr, held);
  }
  std::size_t given = 0;
  for (;;) {
    auto* const idle = chunks_.largest_idle(keep, [this](chunk const& home) { return idle_and_complete(home); });
    if (!idle) return given;
    idle->shard->ranges.remove(*idle);
    idle->shard->reserved -= idle->bytes;
    ++idle->shard->counts.releases;
    auto const gone = chunks_.begin_leave(*idle);
    set_caching();
    held.unlock();
    upstream_->give_back(gone);
    held.lock();
    chunks_.end_leave(gone.bytes);
    changed_.notify_all();
    given += gone.bytes;
  }
}

std::size_t pool_engine::trim(std::size_t keep) {
  shard_locks held{shards_};
  serve_deferred();
  sweep();
  order_.learn_completion(nullptr, everywhere());
  return give_back(keep, held);
}

void pool_engine::post_pass() noexcept {
  if (posted_ || !driver_alive()) return;
  posted_ = true;
  leaving(); // is watched from now on
  library_executor().post(*this);
}

// A pass of the library thread: gives back what is beyond the threshold, or all of a closed pool, as it completes.
void pool_engine::resume() noexcept {
  bool done = false;
  {
    shard_locks held{shards_};
    posted_ = false;
    passing_ = true;
    pass(held);
    passing_ = false;
    done = closed_ && chunks_.empty();
    bool const more = closed_ ? !done : chunks_.reserved() > options_.release_threshold && idle_passes_ < most_passes;
    if (more && !leaving()) post_pass();
    if (more && leaving() && closed_) leave_behind();
  }
  if (done) delete this;
}

void pool_engine::pass(shard_locks& held) noexcept {
  try {
    sweep(); // near the threshold frees are kept apart again
    order_.learn_completion(nullptr, everywhere());
    give_back(closed_ ? 0 : options_.release_threshold, held);
    auto const open = pool_order::open_timelines(false, everywhere());
    auto const tails = pool_order::open_timelines(true, everywhere());
    // Tails of streams that never came back; waited for by another thread, now and then.
    bool const only_tails = closed_ && !tails.empty() && open.size() == tails.size() && idle_passes_ >= next_wait_;
    if (only_tails) next_wait_ = idle_passes_ + most_passes;
    ++idle_passes_;
    if (open.empty()) idle_passes_ = most_passes; // what is left is in use, or needed
    auto const pause = std::min<sync::duration>(shortest_pause * idle_passes_, longest_pause);
    held.unlock();
    if (only_tails) synchronise_with(tails, 0ns);
    if (!open.empty()) sync::sleep_for(pause);
    held.lock();
  } catch (std::bad_alloc const&) {
    if (!held) held.lock(); // the next pass looks again
  }
}

// A pool that outlives the driver is leaked on purpose, and stays reachable.
void pool_engine::leave_behind() noexcept {
  static std::atomic<pool_engine*> left{nullptr};
  next_left_ = left.exchange(this);
}

bool pool_engine::abandon() noexcept {
  shard_locks const held{shards_};
  abandoned_ = true;
  set_caching();
  sweep();
  return live_blocks() == 0;
}

void pool_engine::close() noexcept {
  bool done = false;
  {
    shard_locks held{shards_};
    closed_ = true;
    if (!driver_alive()) return leave_behind(); // no call may be made any more
    serve_deferred();
    if (posted_ && library_executor().retract(*this)) posted_ = false;
    if (posted_ || passing_) return; // the pass takes over
    try {
      order_.learn_completion(nullptr, everywhere());
    } catch (std::bad_alloc const&) {
      // The library thread looks again.
    }
    give_back(0, held);
    done = chunks_.empty();
    idle_passes_ = 0;
    if (!done) post_pass();
  }
  if (done) delete this;
}

} // namespace gpumem::detail
