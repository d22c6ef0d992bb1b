// Allocates chunks, moves them between shards, and gives them back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <new>
module gpumem:chunk_backend.impl;
import :chunk_backend;
import :backend_parts;
import :block;
import :chunk_list;
import :error;
import :growth_lock;
import :pool_shard;
import :pool_upstream;
import :range_allocator;
import :range_search;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;

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
expected<block*, failure> chunk_backend::allocate(stream_key const& key, pool_shard& into, std::size_t bytes,
                                                  std::size_t least) {
  expected<void*, failure> drawn = nullptr;
  parts_.lock.begin();
  {
    upstream_call const during{parts_.shards};
    drawn = parts_.upstream.allocate(key, bytes);
    if (!drawn && bytes > least) drawn = parts_.upstream.allocate(key, bytes = least);
  }
  parts_.lock.end();
  if (!drawn) {
    parts_.note_failure(drawn.error());
    return unexpected<failure>{drawn.error()};
  }
  try {
    return &add(key, into, *drawn, bytes);
  } catch (std::bad_alloc const&) {
    upstream_call const during{parts_.shards};
    parts_.upstream.deallocate({.base = reinterpret_cast<std::uintptr_t>(*drawn), .bytes = bytes});
    throw;
  }
}

expected<block*, failure> chunk_backend::reserve(std::size_t bytes, pool_shard& into) {
  return allocate(stream_key::host(), into, bytes, bytes);
}

// Adds a chunk to a shard as one free block. If the upstream's memory is valid only in the order of the key's stream,
// that stream counts as the block's first user. Other streams then come after it.
block& chunk_backend::add(stream_key const& key, pool_shard& into, void* base, std::size_t bytes) {
  bool const ordered = parts_.upstream.orders_by(key);
  auto& added = parts_.chunks.add(base, bytes);
  try {
    auto& fresh =
        into.ranges.add(added, ordered ? stream_uses{{&key.timeline(), key.end_use(bytes, true)}} : stream_uses{});
    added.shard = &into;
    into.include(added.base, added.end());
    parts_.count_growth(into, bytes);
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
  std::size_t given = 0;
  for (;;) {
    auto* const idle = parts_.chunks.largest_idle(keep, [this](chunk const& parent) {
      assert_shard_held();
      return is_idle_and_complete(parent);
    });
    if (!idle) return given;
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
    given += gone.bytes;
  }
}

} // namespace gpumem::detail
