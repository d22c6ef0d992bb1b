// Allocates, moves and frees the chunks of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <new>
#include <stdexcept>
module gpumem:pool_backend.impl;
import :pool_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :driver;
import :error;
import :growth_policy;
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

attempt<placement> pool_backend::grow(allocation_request const& request, bool exact) {
  auto const need = request.bytes + (request.alignment - granule);
  auto bytes = parts_.chunks.growth(need, request.shard->reserved);
  if (bytes == 0 && parts_.chunks.releasing() > 0 && !request.can_park()) {
    parts_.lock.wait_for_release(parts_.chunks);
    return attempt<placement>::retry();
  }
  if (bytes == 0) return unexpected<failure>{failure{outcome::exhausted, 0, request.requested}};
  if (exact) bytes = need;
  auto const fresh = allocate_chunk(request.key, *request.shard, bytes, need);
  if (!fresh) return unexpected<failure>{failure{fresh.error().reason, fresh.error().code, request.requested}};
  std::size_t offset = 0;
  fits(**fresh, request.bytes, request.alignment, offset);
  return placement{*fresh, offset, reuse_tier::none};
}

// Allocates a chunk while the shards are unlocked and the growth lock keeps other threads from growing the pool. If the
// upstream has less than `bytes`, tries `least`. Returns the chunk's only block, which is free.
expected<block*, failure> pool_backend::allocate_chunk(stream_key const& key, pool_shard& shard, std::size_t bytes,
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
    return &add_chunk(key, shard, *result, bytes);
  } catch (std::bad_alloc const&) {
    upstream_call const during{parts_.shards};
    parts_.upstream.deallocate({.base = reinterpret_cast<std::uintptr_t>(*result), .bytes = bytes});
    throw;
  }
}

expected<block*, failure> pool_backend::reserve(std::size_t bytes, pool_shard& shard) {
  return allocate_chunk(stream_key::host(), shard, bytes, bytes);
}

// Adds a chunk to a shard as one free block. If the upstream's memory is valid only in the order of the key's stream,
// that stream counts as the block's first user. Other streams then come after it.
block& pool_backend::add_chunk(stream_key const& key, pool_shard& shard, void* base, std::size_t bytes) {
  bool const ordered = parts_.upstream.orders_by(key);
  auto& added = parts_.chunks.add(base, bytes);
  try {
    auto& fresh =
        shard.ranges.add(added, ordered ? stream_uses{{&key.identity().timeline(), key.identity().end_use(bytes, true)}}
                                        : stream_uses{});
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

placement pool_backend::migrate_chunk(allocation_request const& request) {
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

bool pool_backend::has_chunks() const noexcept {
  bool found = false;
  parts_.chunks.visit([&](chunk const& each) { found = found || !each.addresses; });
  return found;
}

// Returns the largest idle chunk; null if there is none. A chunk is idle if it is free and all work that used it is
// complete. Leaves out a chunk if fewer than `keep` bytes would remain without it.
chunk* pool_backend::idle_chunk(std::size_t keep) const noexcept {
  return parts_.chunks.largest_idle(keep, [gone = parts_.device_gone()](chunk const& parent) {
    bool complete = !parent.addresses && parent.pins == 0;
    parent.visit([&](block const& each) { complete = complete && each.is_free() && (gone || each.uses.completed()); });
    return complete;
  });
}

std::size_t pool_backend::release(std::size_t keep) noexcept {
  std::size_t returned_bytes = 0;
  for (;;) {
    auto* const idle = idle_chunk(keep);
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

std::size_t pool_backend::capacity() const noexcept {
  auto const unit = parts_.growth.unit();
  return parts_.chunks.max_reserved() / unit * unit;
}

// Where the pool grows is unknown, so the request needs bytes for an alignment beyond that of chunks too. An existing
// chunk can suffice.
bool pool_backend::could_hold(std::size_t bytes, std::size_t alignment) const noexcept {
  auto const most = capacity();
  if (bytes > most) return false;
  return std::max(alignment, granule) - granule <= most - bytes || has_chunk_for(bytes, alignment);
}

bool pool_backend::has_chunk_for(std::size_t bytes, std::size_t alignment) const noexcept {
  bool any = false;
  parts_.chunks.visit([&](chunk const& each) {
    auto const skipped = (0 - each.base) & (alignment - 1);
    any = any || (!each.addresses && skipped < each.bytes && bytes <= each.bytes - skipped);
  });
  return any;
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
    auto const most = chunks.headroom() / parts_.growth.unit() *
                      parts_.growth.unit(); // pages are whole, but chunks beside them need not be
    auto const drawn = std::min(needed_bytes, most);
    if (drawn == 0) return std::size_t{0};
    auto const fresh = reserve(drawn, shard);
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

void pool_backend::release_for(allocation_request const& request) {
  if (!request.can_park()) pool_backend::release(0); // the driver's free of a chunk waits for all work of the device
}

bool pool_backend::ask_for_release() noexcept { return wants_release_ = wants_release_ || idle_chunk(0); }

address_range& pool_backend::open_range(std::size_t) {
  throw std::invalid_argument{"gpumem: a pool without pages lends none"};
}

chunk* pool_backend::chunk_of(void const* pointer, std::size_t bytes) {
  parts_.lock.wait();
  auto* const parent = parts_.chunks.find_containing(pointer);
  bool const whole = parent && bytes > 0 && bytes <= parent->end() - reinterpret_cast<std::uintptr_t>(pointer);
  return whole ? parent : nullptr;
}

bool pool_backend::pin(void const* pointer, std::size_t bytes) {
  return chunk_of(pointer, bytes); // the program keeps the block
}

void pool_backend::unpin(void const*, std::size_t) {}

// Other devices can use memory of cuMemAlloc after the program has enabled peer access.
CUresult pool_backend::open_to(device) {
  parts_.lock.wait();
  return CUDA_SUCCESS;
}

expected<exported_page, failure> pool_backend::export_page(void const*) {
  return unexpected<failure>{failure{outcome::invalid_argument, 0, 0}};
}

} // namespace gpumem::detail
