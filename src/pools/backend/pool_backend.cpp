// Passes each call to the backend for pages or to that for chunks, which allocates, moves and frees chunks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <new>
module gpumem:pool_backend.impl;
import :pool_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :driver;
import :error;
import :growth_policy;
import :page_backend;
import :page_store;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :virtual_pages;

namespace gpumem::detail {

attempt<placement> chunk_backend::grow(allocation_request const& request, bool exact) {
  auto const need = request.bytes + (request.alignment - granule);
  auto bytes = parts_.chunks.growth(need, request.shard->reserved);
  if (bytes == 0 && parts_.chunks.releasing() > 0 && !request.can_park()) {
    parts_.lock.wait_for_release(parts_.chunks);
    return attempt<placement>::retry();
  }
  if (bytes == 0) return unexpected<failure>{failure{outcome::exhausted}};
  if (exact) bytes = need;
  auto const fresh = allocate(request.key, *request.shard, bytes, need);
  if (!fresh) return unexpected<failure>{fresh.error()};
  std::size_t offset = 0;
  fits(**fresh, request.bytes, request.alignment, offset);
  return placement{*fresh, offset, reuse_tier::none};
}

// Allocates a chunk while the shards are unlocked and the growth lock keeps other threads from growing the pool. If the
// upstream has less than `bytes`, tries `least`. Returns the chunk's only block, which is free.
expected<block*, failure> chunk_backend::allocate(stream_key const& key, pool_shard& shard, std::size_t bytes,
                                                  std::size_t least) {
  expected<void*, failure> result = nullptr;
  parts_.lock.begin();
  {
    upstream_call const during{parts_.shards};
    result = parts_.upstream.allocate(key, bytes);
    if (!result && bytes > least) result = parts_.upstream.allocate(key, bytes = least);
  }
  parts_.lock.end();
  if (!result) {
    parts_.note_failure(result.error());
    return unexpected<failure>{result.error()};
  }
  try {
    return &add(key, shard, *result, bytes);
  } catch (std::bad_alloc const&) {
    upstream_call const during{parts_.shards};
    parts_.upstream.deallocate({.base = reinterpret_cast<std::uintptr_t>(*result), .bytes = bytes});
    throw;
  }
}

expected<block*, failure> chunk_backend::reserve(std::size_t bytes, pool_shard& shard) {
  return allocate(stream_key::host(), shard, bytes, bytes);
}

// Adds a chunk to a shard as one free block. If the upstream's memory is valid only in the order of the key's stream,
// that stream counts as the block's first user. Other streams then come after it.
block& chunk_backend::add(stream_key const& key, pool_shard& shard, void* base, std::size_t bytes) {
  bool const ordered = parts_.upstream.orders_by(key);
  auto& added = parts_.chunks.add(base, bytes);
  try {
    auto& fresh =
        shard.ranges.add(added, ordered ? stream_uses{{&key.timeline(), key.end_use(bytes, true)}} : stream_uses{});
    added.shard = &shard;
    shard.include(added.base, added.end());
    parts_.count_growth(shard, bytes);
    return fresh;
  } catch (...) {
    auto const lost = parts_.chunks.begin_release(added);
    parts_.chunks.end_release(lost.bytes);
    throw;
  }
}

placement chunk_backend::migrate(allocation_request const& request) {
  std::size_t offset = 0;
  auto* const idle = parts_.chunks.largest_idle(0, [&](chunk const& parent) {
    auto const& whole = *parent.first;
    if (parent.addresses || parent.shard == request.shard || parent.last != &whole || !whole.is_free()) return false;
    return fits(whole, request.bytes, request.alignment, offset) &&
           parts_.rules.classify(whole.uses, request.key, reuse_tier::completed) != reuse_tier::none;
  });
  if (!idle) return {};
  auto& whole = request.shard->ranges.adopt(*idle, idle->shard->ranges);
  idle->shard->reserved -= idle->bytes;
  request.shard->reserved += idle->bytes;
  request.shard->include(idle->base, idle->end());
  idle->shard = request.shard;
  ++request.shard->counters.chunks_migrated;
  fits(whole, request.bytes, request.alignment, offset);
  return {&whole, offset, parts_.rules.classify(whole.uses, request.key, reuse_tier::completed)};
}

bool chunk_backend::is_idle_and_complete(chunk const& parent) const noexcept {
  bool complete = !parent.addresses && parent.pins == 0, gone = parts_.device_gone();
  parent.visit([&](block const& each) { complete = complete && each.is_free() && (gone || each.uses.completed()); });
  return complete;
}

bool chunk_backend::any() const noexcept {
  bool found = false;
  parts_.chunks.visit([&](chunk const& each) { found = found || !each.addresses; });
  return found;
}

bool chunk_backend::can_release() const noexcept {
  return parts_.chunks.largest_idle(0, [this](chunk const& parent) {
    assert_shard_held();
    return is_idle_and_complete(parent);
  }) != nullptr;
}

// Gives back idle chunks, the largest one first. A chunk is idle if it is free and all work that used it is complete.
std::size_t chunk_backend::release(std::size_t keep) noexcept {
  std::size_t returned_bytes = 0;
  for (;;) {
    auto* const idle = parts_.chunks.largest_idle(keep, [this](chunk const& parent) {
      assert_shard_held();
      return is_idle_and_complete(parent);
    });
    if (!idle) return returned_bytes;
    idle->shard->ranges.remove(*idle);
    idle->shard->reserved -= idle->bytes;
    ++idle->shard->counts.upstream_frees;
    auto const gone = parts_.chunks.begin_release(*idle);
    parts_.observer.on_reserved_changed();
    {
      upstream_call const during{parts_.shards};
      parts_.upstream.deallocate(gone);
    }
    parts_.chunks.end_release(gone.bytes);
    parts_.lock.notify_release();
    returned_bytes += gone.bytes;
  }
}

namespace {

// Returns why a request failed for which the driver had no addresses, and the device no chunk either. An upstream that
// refuses a chunk does not say whether it lacks memory or addresses.
failure first_cause(failure const& pages, failure const& chunk) noexcept {
  return chunk.code == CUDA_ERROR_OUT_OF_MEMORY ? pages : chunk;
}

} // namespace

std::size_t pool_backend::unit() const noexcept { return paged() ? parts_.growth.unit() : granule; }

std::size_t pool_backend::capacity() const noexcept { return parts_.chunks.max_reserved() / unit() * unit(); }

// Where the pool grows is unknown, so the request needs bytes for an alignment beyond that of pages or chunks too. In a
// pool of chunks an existing chunk can suffice.
bool pool_backend::could_hold(std::size_t bytes, std::size_t alignment) const noexcept {
  auto const most = capacity();
  if (bytes > most) return false;
  if (!paged()) return std::max(alignment, granule) - granule <= most - bytes || has_chunk_for(bytes, alignment);
  auto const skipped = std::max(alignment, smallest_page) - smallest_page;
  auto const addresses = parts_.upstream.pages()->options().address_space;
  return skipped <= most - bytes && (addresses == 0 || bytes + skipped <= addresses);
}

bool pool_backend::has_chunk_for(std::size_t bytes, std::size_t alignment) const noexcept {
  bool any = false;
  parts_.chunks.visit([&](chunk const& each) {
    auto const skipped = (0 - each.base) & (alignment - 1);
    any = any || (!each.addresses && skipped < each.bytes && bytes <= each.bytes - skipped);
  });
  return any;
}

attempt<placement> pool_backend::grow(allocation_request const& request, bool exact) {
  auto new_memory = !paged()       ? chunks_.grow(request, exact)
                    : request.loan ? pages_.lend(request, exact)
                                   : pages_.grow(request, exact);
  if (!new_memory.has_failed()) return new_memory;
  auto why = new_memory.error();
  if (takes_chunks_after(why)) {
    auto chunk = chunks_.grow(request, exact);
    if (!chunk.has_failed()) return chunk;
    why = first_cause(why, chunk.error());
  }
  bool const no_addresses = paged() && !request.loan && why.reason == outcome::too_large;
  return unexpected<failure>{failure{no_addresses ? outcome::exhausted : why.reason, why.code, request.requested}};
}

bool pool_backend::takes_chunks_after(failure const& failure) const noexcept {
  return paged() && is_no_addresses(failure) && parts_.upstream.chunks_serve_as_pages();
}

expected<std::size_t, failure> pool_backend::grow_to(std::size_t bytes, pool_shard& shard) {
  for (;;) {
    parts_.lock.wait();
    auto const& chunks = parts_.chunks;
    auto const rounded = std::min((bytes + granule - 1) / granule * granule, capacity());
    if (rounded <= chunks.reserved()) return std::size_t{0};
    auto const needed_bytes = rounded - chunks.reserved();
    if (needed_bytes > chunks.headroom()) { // bytes that are being released still count
      parts_.lock.wait_for_release(chunks);
      continue;
    }
    auto const most = chunks.headroom() / unit() * unit(); // pages are whole, but chunks beside them need not be
    auto const drawn = std::min(needed_bytes, most);
    if (drawn == 0) return std::size_t{0};
    auto fresh = paged() ? pages_.reserve(drawn, shard) : chunks_.reserve(drawn, shard);
    if (!fresh && takes_chunks_after(fresh.error())) {
      auto const why = fresh.error();
      fresh = chunks_.reserve(drawn, shard);
      if (!fresh) return unexpected<failure>{first_cause(why, fresh.error())};
    }
    if (!fresh) return unexpected<failure>{fresh.error()};
    return drawn;
  }
}

bool pool_backend::add_outside(std::size_t bytes) {
  for (;;) {
    wait_for_growth(); // its bytes are not reserved yet
    auto& chunks = parts_.chunks;
    auto const room = chunks.room_beside(bytes);
    bool const fits = room && chunks.reserved() + chunks.releasing() <= *room;
    if (fits) chunks.add_outside(bytes);
    if (fits || !room || chunks.releasing() == 0) return fits;
    parts_.lock.wait_for_release(chunks);
  }
}

placement pool_backend::migrate_chunk(allocation_request const& request) {
  return chunks_.migrate(request); // pages move one by one
}

std::size_t pool_backend::release(std::size_t keep) noexcept {
  auto const pages = paged() ? pages_.release(keep) : 0;
  return pages + chunks_.release(keep);
}

placement pool_backend::move_at_limit(allocation_request const& request) {
  return paged() && !request.loan ? pages_.move_at_limit(request) : placement{};
}

void pool_backend::release_for(allocation_request const& request) {
  if (paged()) pages_.release_for(request);
  if (!request.can_park()) chunks_.release(0); // the driver's free of a chunk waits for all work of the device
}

bool pool_backend::ask_for_release() noexcept { return wants_release_ = wants_release_ || chunks_.can_release(); }

address_range& pool_backend::open_range(std::size_t bytes) { return pages_.open_range(bytes); }

void pool_backend::close_range(address_range& range) noexcept {
  range.closed = true;
  if (!upstream_call::runs_here(parts_.shards)) pages_.drop_closed_ranges(); // otherwise a later call drops it
}

bool pool_backend::pin(void const* pointer, std::size_t bytes) {
  if (auto* const pages = pages_.pages_of(pointer)) return pages->pin(pointer, bytes);
  auto* const parent = parts_.chunks.find_containing(pointer);
  bool const whole = parent && bytes > 0 && bytes <= parent->end() - reinterpret_cast<std::uintptr_t>(pointer);
  if (whole && paged()) ++parent->pins; // in a pool of chunks the program keeps the block
  return whole;
}

void pool_backend::unpin(void const* pointer, std::size_t bytes) {
  if (auto* const pages = pages_.pages_of(pointer)) return pages->unpin(pointer, bytes);
  auto* const parent = parts_.chunks.find_containing(pointer);
  if (parent && parent->pins > 0) --parent->pins;
}

// A pool of chunks needs no call: other devices can use memory of cuMemAlloc after the program has enabled peer access.
// In a pool of pages another device would use a chunk without that access, so the pool refuses if it has one.
CUresult pool_backend::open_to(device peer) {
  parts_.lock.wait();
  if (!paged()) return CUDA_SUCCESS;
  if (parts_.upstream.pages()->is_open_to(peer)) return CUDA_SUCCESS;
  chunks_.release(0);
  parts_.lock.wait();
  if (chunks_.any()) {
    throw_cuda_error(CUDA_ERROR_NOT_SUPPORTED, "gpumem: open_to(): the pool has chunks beside its pages, since the "
                                               "process has no addresses left; no other device can access chunks");
  }
  for (auto const& shard : parts_.shards.all()) {
    for (auto const& each : shard->addresses) {
      if (auto const result = each->pages.open_mapped_to(peer); result != CUDA_SUCCESS) return result;
    }
  }
  return parts_.upstream.pages()->open_to(peer);
}

expected<exported_page, failure> pool_backend::export_page(void const* pointer) {
  if (auto* const pages = pages_.pages_of(pointer)) return pages->export_page(pointer);
  return unexpected<failure>{failure{outcome::invalid_argument, 0, 0}};
}

} // namespace gpumem::detail
