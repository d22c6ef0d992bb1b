// Allocates a block from the thread's shard, from all shards, or from new memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <new>
module gpumem:allocate_path.impl;
import :allocate_path;
import :block;
import :chunk_list;
import :device;
import :error;
import :frees;
import :memory_report;
import :out_of_memory_path;
import :pool_backend;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :range_search;
import :request_queue;
import :shard_allocator;
import :shard_list;
import :stream;
import :stream_timeline;
import :sync;
import :thread_caches;

namespace gpumem::detail {

expected<void*, failure> allocate_path::allocate(stream_key const& key, size_class size, std::size_t bytes,
                                                 std::size_t alignment) noexcept {
  auto const asked = key.asked();
  auto const result =
      try_allocate({asked, bytes, size.bytes, size.number, std::max(alignment, granule), sync::thread_index()});
  if (!result && result.error().reason == outcome::exhausted && !parts_.options.failure_report.empty() &&
      key.queues() == queueing::none) [[unlikely]]
    append_failure_report(parts_, frees_, result.error());
  return result;
}

expected<void*, failure> allocate_path::lend(stream_key const& key, loan_terms const& terms,
                                             std::size_t bytes) noexcept {
  auto const now = key.asked();
  return try_allocate({.key = now,
                       .requested = bytes,
                       .bytes = bytes,
                       .class_number = size_class::count,
                       .alignment = granule,
                       .thread = sync::thread_index(),
                       .loan = &terms});
}

[[gnu::always_inline]] inline expected<void*, failure>
allocate_path::try_allocate(allocation_request request) noexcept {
  auto const& key = request.key;
  auto const bytes = request.requested;
  if (key.capturing()) [[unlikely]]
    return fail(request, outcome::capture_unsupported);
  auto const limit = parts_.chunks.limit();
  if (parts_.mode.near_limit() || (limit && request.bytes > limit)) [[unlikely]]
    request.drop_rounding(parts_.smallest_block);
  if (!parts_.serves(key)) [[unlikely]] {
    static_cast<void>(fail(request, outcome::invalid_argument));
    return unexpected<failure>{failure_of(broken_rule::unopened_device, bytes)};
  }
  bool const beyond_limit = limit && request.bytes > limit;
  bool const too_large = bytes > parts_.largest_block && !key.for_chunk() && !request.loan;
  if (beyond_limit || too_large) [[unlikely]]
    return fail(request, outcome::too_large);
  if (!parts_.requests.is_open()) [[unlikely]] {
    if (auto const why = queue_.refusal_at_admission(request)) return fail(request, *why);
  }
  try {
    request.key.timeline().prepare();
  } catch (...) {
    // No spare event could be made. So frees on this stream record no event until a later call makes one. The stream
    // itself still reuses its memory.
  }
  try {
    if (auto* const p = request.loan ? nullptr : allocator_.allocate_from_own(request)) [[likely]]
      return p;
    return allocate_from_all(request);
  } catch (std::bad_alloc const&) {
    static_cast<void>(fail(request, outcome::exhausted));
    return unexpected<failure>{no_host_memory(bytes)};
  }
}

expected<void*, failure> allocate_path::allocate_from_all(allocation_request& request) {
  all_shards_lock const held{parts_.shards};
  enter(request);
  // If a thread has often allocated from the shards of other threads, it searches and grows its own shard first. With
  // the option `shard_per_thread` each thread does so.
  bool const avoids_steals = parts_.options.shard_per_thread || allocator_.steals_too_often(*request.shard);
  for (bool own = avoids_steals && !request.loan;;) {
    deferred_.run(&request.key);
    if (auto* const p = own ? allocator_.search_own(request) : allocator_.search_all(request)) return p;
    auto const grown = allocator_.grow(request, false);
    if (grown.is_done()) return grown.value();
    if (grown.must_retry()) continue;
    if (own) {
      own = false;
      continue;
    }
    auto const found = out_of_memory_.allocate(request, grown.error());
    if (found) return found;
    count_failure(*request.shard, request);
    if (!parts_.backend.lost()) return found;
    return unexpected<failure>{failure{outcome::device_lost, parts_.backend.where()->lost_error(), request.requested}};
  }
}

// Prepares a request under the locks of all shards. While requests wait, each call takes all these locks, so a shard of
// its own would not help the thread.
void allocate_path::enter(allocation_request& request) {
  auto& shards = parts_.shards;
  if (shards.begin_allocation(request.bytes, !parts_.requests.has_waiting())) parts_.update_mode();
  request.shard = shards.is_shared(request.bytes) ? shards.all().front().get() : &shards.shard_of_thread();
  ++request.shard->counters.locked_calls;
  request.shard->counters.all_locked_calls += parts_.shards.all().size() > 1;
  parts_.mode.add_stream(request.key.timeline());
  parts_.caches.ensure_storage(request.thread);
}

expected<void*, failure> allocate_path::fail(allocation_request const& request, outcome why) noexcept {
  auto& shard = parts_.shards.shard_of_thread();
  shard_lock const held{parts_.shards, shard};
  count_failure(shard, request);
  return unexpected<failure>{failure{why, 0, request.requested}};
}

// A request that waits for memory counts as failed when it ends, not at each attempt.
void allocate_path::count_failure(pool_shard& in, allocation_request const& request) noexcept {
  in.counts.failures += request.key.queues() != queueing::admitted;
}

} // namespace gpumem::detail
