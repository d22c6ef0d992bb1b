// Growth and release of pools over chunks, and the parts that pools over pages share with them.
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
module gpumem:pool_backend.impl;
import :pool_backend;
import :allocation_request;
import :attempt;
import :chunk_list;
import :block;
import :chunk;
import :cuda;
import :device;
import :error;
import :growth_policy;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :stream_uses;
import :sync;
import :time_budget;
import :virtual_pages;

namespace gpumem::detail {
namespace {

// The longest burst of moves. With 5 ms recorded traces of 0.2 s reserved a quarter more: they made new pages instead,
// which stay scattered.
inline constexpr time_budget::nanoseconds max_burst = std::chrono::milliseconds{50};

std::optional<device> device_of(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  return ordinal < 0 ? std::nullopt : std::optional{device{ordinal}};
}

} // namespace

pool_backend::pool_backend(pool_upstream& upstream, pool_options const& options, reuse_rules& rules, chunk_list& chunks,
                           shard_list& shards, observer& watcher)
    : upstream_{upstream}, options_{options}, device_{device_of(upstream)}, rules_{rules}, chunks_{chunks},
      shards_{shards}, observer_{watcher}, growth_{chunks_, shards, rules},
      move_budget_{options.effort, max_burst, sync::now()} {}

bool pool_backend::wait_for_growth(all_shards_lock& held) {
  bool const any = growing_;
  while (growing_) held.wait(changed_);
  return any;
}

attempt<placement> pool_backend::grow(allocation_request const& request, all_shards_lock& held, bool exact) {
  auto grown = paged() ? grow_pages(request, held, exact) : grow_chunk(request, held, exact);
  if (!grown.has_failed()) return grown;
  auto const& why = grown.error();
  auto const kind = why.reason == outcome::too_large ? outcome::exhausted : why.reason;
  return unexpected<failure>{failure{kind, why.code, request.requested}};
}

expected<std::size_t, failure> pool_backend::grow_to(std::size_t bytes, pool_shard& into, all_shards_lock& held) {
  for (;;) {
    wait_for_growth(held);
    auto const unit = paged() ? smallest_page : granule;
    auto const wanted = std::min((bytes + granule - 1) / granule * granule, chunks_.max_reserved() / unit * unit);
    if (wanted <= chunks_.reserved()) return std::size_t{0};
    auto const missing = wanted - chunks_.reserved();
    if (missing > chunks_.headroom()) { // bytes that are being released still count
      wait_for_release(held);
      continue;
    }
    auto const fresh = paged() ? map_pages(into, {std::nullopt, missing, missing}, {}, held)
                               : allocate_chunk(stream_key::host(), into, missing, missing, held);
    if (!fresh) return unexpected<failure>{fresh.error()};
    return missing;
  }
}

attempt<placement> pool_backend::grow_chunk(allocation_request const& request, all_shards_lock& held, bool exact) {
  auto const need = request.bytes + (request.alignment - granule);
  auto bytes = chunks_.growth(need, request.shard->reserved);
  if (bytes == 0 && chunks_.releasing() > 0) {
    wait_for_release(held);
    return attempt<placement>::retry();
  }
  if (bytes == 0) return unexpected<failure>{failure{outcome::exhausted}};
  if (exact) bytes = need;
  auto const fresh = allocate_chunk(request.key, *request.shard, bytes, need, held);
  if (!fresh) return unexpected<failure>{fresh.error()};
  std::size_t offset = 0;
  fits(**fresh, request.bytes, request.alignment, offset);
  return placement{*fresh, offset, reuse_tier::none};
}

// Allocates a chunk without the locks, while growing_ keeps other threads out. If the upstream has less than `bytes`,
// tries `least`. Returns the chunk's only block, which is free.
expected<block*, failure> pool_backend::allocate_chunk(stream_key const& key, pool_shard& into, std::size_t bytes,
                                                       std::size_t least, all_shards_lock& held) {
  growing_ = true;
  held.unlock();
  auto drawn = upstream_.allocate(key, bytes);
  if (!drawn && bytes > least) drawn = upstream_.allocate(key, bytes = least);
  held.lock();
  end_growth();
  if (!drawn) {
    auto const& why = drawn.error();
    if (device_ && why.reason == outcome::device_lost) device_->mark_lost(static_cast<CUresult>(why.code));
    return unexpected<failure>{why};
  }
  try {
    return &add_chunk(key, into, *drawn, bytes);
  } catch (std::bad_alloc const&) {
    held.unlock();
    upstream_.deallocate({.base = reinterpret_cast<std::uintptr_t>(*drawn), .bytes = bytes});
    held.lock();
    throw;
  }
}

void pool_backend::wait_for_release(all_shards_lock& held) {
  auto const before = chunks_.releasing();
  while (chunks_.releasing() == before) held.wait(changed_);
}

void pool_backend::end_growth() noexcept {
  growing_ = false;
  changed_.notify_all();
}

// Memory of the upstream is valid in the order of the stream it was allocated on: its first use.
block& pool_backend::add_chunk(stream_key const& key, pool_shard& into, void* base, std::size_t bytes) {
  bool const ordered = upstream_.stream_ordered() && !key.is_host();
  auto& added = chunks_.add(base, bytes);
  try {
    auto& fresh =
        into.ranges.add(added, ordered ? stream_uses{{&key.timeline(), key.end_use(bytes, true)}} : stream_uses{});
    added.shard = &into;
    count_growth(into, bytes);
    return fresh;
  } catch (...) {
    auto const lost = chunks_.begin_release(added);
    chunks_.end_release(lost.bytes);
    throw;
  }
}

void pool_backend::count_growth(pool_shard& into, std::size_t bytes) noexcept {
  into.reserved += bytes;
  ++into.counts.upstream_allocations;
  observer_.on_reserved_changed();
}

placement pool_backend::migrate_chunk(allocation_request const& request) {
  if (paged()) return {}; // pages belong to the addresses of their shard
  std::size_t offset = 0;
  auto* const idle = chunks_.largest_idle(0, [&](chunk const& parent) {
    auto const& whole = *parent.first;
    if (parent.shard == request.shard || parent.last != &whole || !whole.is_free()) return false;
    return fits(whole, request.bytes, request.alignment, offset) &&
           rules_.classify(whole.uses, request.key, reuse_tier::completed) != reuse_tier::none;
  });
  if (!idle) return {};
  auto& whole = request.shard->ranges.adopt(*idle, idle->shard->ranges);
  idle->shard->reserved -= idle->bytes;
  request.shard->reserved += idle->bytes;
  idle->shard = request.shard;
  ++request.shard->counters.chunks_migrated;
  fits(whole, request.bytes, request.alignment, offset);
  return {&whole, offset, rules_.classify(whole.uses, request.key, reuse_tier::completed)};
}

std::size_t pool_backend::release(std::size_t keep, all_shards_lock& held) noexcept {
  if (!paged()) return release_chunks(keep, held);
  auto const excess = chunks_.reserved() - std::min(keep, chunks_.reserved());
  return release_idle({.wanted = excess, .max_bytes = excess}, held);
}

void pool_backend::release_for(allocation_request const& request, all_shards_lock& held) {
  if (!paged()) {
    release_chunks(0, held);
    return;
  }
  wait_for_growth(held); // no other thread may change the pages meanwhile
  auto const plan = growth_.plan(request, *request.shard, true);
  evict_pages(request, plan, plan ? std::min(plan->bytes, chunks_.headroom()) : 0, held);
}

bool pool_backend::idle_and_complete(chunk const& parent) const noexcept {
  bool complete = true, gone = device_gone();
  range_allocator::visit(
      parent, [&](block const& each) { complete = complete && each.is_free() && (gone || each.uses.completed()); });
  return complete;
}

// Releases the largest idle chunk first.
std::size_t pool_backend::release_chunks(std::size_t keep, all_shards_lock& held) noexcept {
  std::size_t given = 0;
  for (;;) {
    auto* const idle = chunks_.largest_idle(keep, [this](chunk const& parent) { return idle_and_complete(parent); });
    if (!idle) return given;
    idle->shard->ranges.remove(*idle);
    idle->shard->reserved -= idle->bytes;
    ++idle->shard->counts.upstream_frees;
    auto const gone = chunks_.begin_release(*idle);
    observer_.on_reserved_changed();
    held.unlock();
    upstream_.deallocate(gone);
    held.lock();
    chunks_.end_release(gone.bytes);
    changed_.notify_all();
    given += gone.bytes;
  }
}

} // namespace gpumem::detail
