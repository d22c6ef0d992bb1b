// Copies blocks of one shard under its lock, and finds the place where the next piece begins.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>
module gpumem:memory_walk.impl;
import :memory_walk;
import :backend_parts;
import :block;
import :chunk_list;
import :frees;
import :holder;
import :page_store;
import :pool_backend;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_allocator;
import :request_queue;
import :shard_list;
import :shard_roles;
import :stream;
import :stream_timeline;
import :sync;
import :thread_caches;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {
namespace {

memory_state state_of(block const& one) noexcept {
  switch (one.state()) {
  case block_state::free:
  case block_state::quick_listed: return memory_state::free;
  case block_state::cached: return memory_state::cached;
  case block_state::evicted:
  case block_state::remote_freed:
  case block_state::deferred: return memory_state::pending;
  default: return memory_state::live;
  }
}

} // namespace

bool memory_walk::copy_next(std::vector<copied_block>& blocks) {
  auto const before = blocks.size();
  if (blocks.capacity() < before + piece_) blocks.reserve(std::max(before + piece_, 2 * before)); // not under a lock
  for (auto* shard = parts_.shards.all().front().get(); blocks.size() < before + piece_;) {
    shard->mutex.lock(); // unlike shard_lock, this does not count contention
    shard_lock const lock{*shard, std::adopt_lock};
    if (parts_.mode.fast_path()) frees_.drain_remote_frees(*shard);
    auto const* parent = parts_.chunks.first_ending_above(next_);
    if (!parent) break;
    if (parent->shard != shard) {
      if (blocks.size() > before) break;
      shard = parent->shard;
      continue;
    }
    while (parent && parent->shard == shard && blocks.size() < before + piece_) {
      copy_from(*parent, blocks, before + piece_);
      parent = parts_.chunks.first_ending_above(next_);
    }
    if (blocks.size() > before) break;
  }
  return blocks.size() > before;
}

// Copies blocks of a chunk until the vector has `end` of them.
void memory_walk::copy_from(chunk const& parent, std::vector<copied_block>& blocks, std::size_t end) {
  if (region_ != parent.base) region_ = 0;
  auto const* at = first_above(parent, blocks);
  for (; at && blocks.size() < end; at = at->upper) {
    auto const state = state_of(*at); // read once: a call on a thread cache may change it meanwhile
    auto const first = std::max<std::uintptr_t>(at->base, next_);
    next_ = at->end();
    if (at->state() == block_state::hole) {
      region_ = 0;
      continue;
    }
    copied_block copy{reinterpret_cast<void*>(first), next_ - first};
    copy.begins_region = region_ == 0;
    region_ = parent.base;
    bool const whole = first == at->base;
    if (whole && state != memory_state::free) {
      copy.state = state;
      copy.stream = at->stream->id();
      copy.age = parent.shard->counters.locked_calls - at->allocated_at;
      if (state != memory_state::cached) copy.requested = at->requested;
      if (state == memory_state::live) copy.label = at->label_number();
    }
    copy.in_use = state == memory_state::free && !at->uses.completed();
    blocks.push_back(copy);
  }
  if (!at) next_ = parent.end();
}

// Returns the block of the chunk that holds the address `next_`; the first block if that address is below the chunk. A
// search from the chunk's first block would visit each copied block again. So it begins at the last block that was
// copied and is not free.
block const* memory_walk::first_above(chunk const& parent, std::span<copied_block const> blocks) const noexcept {
  block const* at = parent.first;
  for (auto i = blocks.size(); i-- > 0 && reinterpret_cast<std::uintptr_t>(blocks[i].base) >= parent.base;) {
    auto const* const known = parent.shard->find_live(blocks[i].base);
    if (!known || known->parent != &parent) continue;
    at = known;
    break;
  }
  while (at && at->end() <= next_) at = at->upper;
  return at;
}

namespace {

// Returns the number of allocations, frees and failures so far. Takes the lock of one shard at a time.
std::uint64_t count_calls(pool_parts& parts, shard_frees& frees) {
  std::uint64_t calls = 0;
  for (auto const& each : parts.shards.all()) {
    each->mutex.lock();
    shard_lock const lock{*each, std::adopt_lock};
    if (parts.mode.fast_path()) frees.drain_remote_frees(*each);
    calls += each->counts.allocations + each->counts.frees + each->counts.failures;
  }
  auto const cached = parts.caches.snapshot();
  return calls + cached.allocations + cached.frees;
}

// Copies no pages in a call from inside the upstream, which may be about to change them.
GPUMEM_REQUIRES(one_shard, all_shards) void copy_pages(pool_parts& parts, std::vector<copied_page>& pages) {
  if (upstream_call::runs_here(parts.shards)) return;
  while (parts.backend->wait_for_growth()) {}
  for (auto const& shard : parts.shards.all()) {
    for (auto const& range : shard->addresses) {
      auto* const base = static_cast<char*>(range->pages.base());
      range->pages.visit(
          [&](page_info const& page) { pages.push_back({base + page.extent.offset, page.extent.bytes, page.pinned}); });
    }
  }
}

} // namespace

memory_copy copy_memory(pool_parts& parts, shard_frees& frees, waiting_requests const& requests,
                        statistics const& before, std::size_t piece) {
  memory_copy copy;
  copy.statistics = before;
  for (memory_walk walk{parts, frees, piece}; walk.copy_next(copy.blocks);) ++copy.pieces;
  copy.calls_meanwhile = count_calls(parts, frees) - (before.allocations + before.frees + before.failures);
  auto const now = sync::now();
  all_shards_lock const lock{parts.shards};
  copy_pages(parts, copy.pages);
  parts.caches.visit([&](unsigned number, cache_counts const& counts) {
    auto const bytes = [&](size_class::kind kind) { return counts.usage[kind].in_use; };
    copy.caches.push_back({number, counts.allocations, counts.frees, bytes(size_class::small),
                           bytes(size_class::medium), bytes(size_class::large)});
  });
  for (auto const* at = requests.queue.first(); at; at = waiter_list::after(*at)) {
    copy.waiting.push_back({at->bytes(), at->part(0).stream.identity().id(), at->priority(),
                            static_cast<std::uint64_t>((now - waiter_list::waits_since(*at)).count()),
                            at->holder() ? at->holder()->name() : std::string{}});
  }
  return copy;
}

} // namespace gpumem::detail
