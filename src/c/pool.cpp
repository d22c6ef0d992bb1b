// The functions of gpumem.h.
// SPDX-License-Identifier: Apache-2.0
#include "pool.hpp"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "copy_known.hpp"
#include "failure.hpp"
#include "made_pools.hpp"
#include "options.hpp"
#include "stack.hpp"

import gpumem;

#include "held_pool.hpp"

using gpumem::c::copy_known;
using gpumem::c::outcome_of;
using gpumem::c::refuse;

namespace {

constexpr char const* no_pool = "the pool is NULL; was it moved from?";

gpumem::stream_ref stream_of(void* stream) noexcept { return gpumem::stream_ref{static_cast<CUstream>(stream)}; }

gpumem_statistics outside(gpumem::statistics const& f) noexcept {
  return {sizeof(gpumem_statistics),
          f.live,
          f.allocated,
          f.reserved,
          f.largest_free,
          f.limit,
          f.peak_live,
          f.peak_reserved,
          f.allocations,
          f.frees,
          f.failures,
          f.upstream_allocations,
          f.upstream_frees,
          f.coalesces,
          f.coalesces_refused,
          f.reuse_same_stream,
          f.reuse_ordered,
          f.reuse_completed,
          f.reuse_waited,
          f.reuse_after_sync,
          f.free,
          f.free_ranges,
          f.free_in_use,
          f.in_use_streams,
          f.quarantined,
          f.cached,
          f.reuse_thread_cache,
          f.largest_block,
          f.waiting,
          f.waiting_bytes,
          f.oldest_wait_ns,
          f.reserved_in_all,
          f.shards,
          f.lent};
}

gpumem_block outside(gpumem_pool::found_block const& b) noexcept {
  return {sizeof(gpumem_block), b.base, b.bytes, b.allocated, b.stream, b.live};
}

gpumem_pool* registered(std::unique_ptr<gpumem_pool> pool) {
  gpumem::c::made_pools::instance().add(*pool);
  return pool.release();
}

} // namespace

uint32_t gpumem_version(void) noexcept {
  static_assert(GPUMEM_VERSION == GPUMEM_BUILT_VERSION, "gpumem.h is of another version than the project");
  return GPUMEM_VERSION;
}

char const* gpumem_outcome_name(gpumem_outcome outcome) noexcept {
  bool const known = outcome >= GPUMEM_GRANTED && outcome <= GPUMEM_DRIVER_ERROR;
  return known ? gpumem::to_string(static_cast<gpumem::outcome>(outcome)) : "unknown outcome";
}

gpumem_outcome gpumem_read_failure(gpumem_failure* failure) noexcept {
  if (!failure) return refuse("gpumem_read_failure", "the out-pointer is NULL");
  if (copy_known(gpumem::c::last_failure(), failure)) return GPUMEM_GRANTED;
  return refuse("gpumem_read_failure", "the size in the failure is too small: write sizeof(gpumem_failure)");
}

char const* gpumem_last_error(void) noexcept { return gpumem::c::last_sentence(); }

gpumem_outcome gpumem_make_pool(int device, char const* options, gpumem_pool** pool) noexcept {
  if (!pool) return refuse("gpumem_make_pool", "the out-pointer is NULL");
  return outcome_of([&] { *pool = registered(gpumem::c::make_stack(device, options ? options : "")); });
}

gpumem_outcome gpumem_make_pool_over(int device, gpumem_callbacks const* callbacks, char const* options,
                                     gpumem_pool** pool) noexcept {
  if (!callbacks) return refuse("gpumem_make_pool_over", "the callbacks are NULL");
  if (!pool) return refuse("gpumem_make_pool_over", "the out-pointer is NULL");
  return outcome_of(
      [&] { *pool = registered(gpumem::c::make_stack_over(device, *callbacks, options ? options : "")); });
}

gpumem_outcome gpumem_make_observed_pool(int device, gpumem_page_observer const* observer, char const* options,
                                         gpumem_pool** pool) noexcept {
  if (!observer) return refuse("gpumem_make_observed_pool", "the observer is NULL");
  if (!pool) return refuse("gpumem_make_observed_pool", "the out-pointer is NULL");
  if (observer->size < sizeof *observer || !observer->changed)
    return refuse("gpumem_make_observed_pool", "the observer has no function, or its size is too small");
  return outcome_of([&] {
    auto const told = *observer;
    auto made = gpumem::c::make_observed_pool(
        device, gpumem::c::parse_options(options ? options : ""),
        [told](void* address, std::size_t bytes, bool mapped) { told.changed(told.context, address, bytes, mapped); });
    *pool = registered(std::move(made));
  });
}

gpumem_outcome gpumem_retain(gpumem_pool* pool) noexcept {
  if (!pool) return refuse("gpumem_retain", no_pool);
  pool->references.fetch_add(1, std::memory_order_relaxed);
  return GPUMEM_GRANTED;
}

gpumem_outcome gpumem_release(gpumem_pool* pool) noexcept {
  if (!pool) return refuse("gpumem_release", no_pool);
  if (gpumem::detail::forked()) return GPUMEM_GRANTED; // the pool belongs to the parent
  if (!gpumem::c::made_pools::instance().drop(*pool)) return GPUMEM_GRANTED;
  outcome_of([&] { delete pool; }); // outcome_of() handles a misuse that the destructor of the pool reports
  return GPUMEM_GRANTED;
}

// Covers the streams a second time after the pool has ended: the end completes frees that were made in captures.
gpumem_outcome gpumem_release_on(gpumem_pool* pool, void* const* streams, size_t count) noexcept {
  if (!pool) return refuse("gpumem_release_on", no_pool);
  if (!streams && count > 0) return refuse("gpumem_release_on", "the streams are NULL");
  if (gpumem::detail::forked()) return GPUMEM_GRANTED;
  auto const cover_all = [=, device = pool->device()] {
    return outcome_of([&] {
      if (!gpumem::driver_api::driver_alive()) return;
      gpumem::device_guard const here{gpumem::device{device}};
      for (auto* const each : std::span{streams, count}) gpumem::cover_frees(stream_of(each));
    });
  };
  if (auto const covered = cover_all(); covered != GPUMEM_GRANTED) return covered;
  gpumem_release(pool);
  cover_all();
  return GPUMEM_GRANTED;
}

gpumem_outcome gpumem_allocate(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment,
                               void** pointer) noexcept {
  if (!pool) return refuse("gpumem_allocate", no_pool);
  if (!pointer) return refuse("gpumem_allocate", "the out-pointer is NULL");
  return outcome_of([&] { *pointer = pool->allocate(stream_of(stream), bytes, alignment); });
}

gpumem_outcome gpumem_free(gpumem_pool* pool, void* stream, void* pointer) noexcept {
  if (!pool) return refuse("gpumem_free", no_pool);
  return outcome_of([&] { pool->free(stream_of(stream), pointer, std::nullopt); });
}

gpumem_outcome gpumem_free_sized(gpumem_pool* pool, void* stream, void* pointer, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_free_sized", no_pool);
  return outcome_of([&] { pool->free(stream_of(stream), pointer, bytes); });
}

gpumem_outcome gpumem_acquire(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment, uint64_t nanoseconds,
                              void** pointer) noexcept {
  if (!pool) return refuse("gpumem_acquire", no_pool);
  if (!pointer) return refuse("gpumem_acquire", "the out-pointer is NULL");
  using limits = std::numeric_limits<std::int64_t>;
  auto const longest = std::chrono::nanoseconds{std::min<std::uint64_t>(nanoseconds, limits::max())};
  return outcome_of([&] { *pointer = pool->acquire(stream_of(stream), bytes, alignment, longest); });
}

gpumem_outcome gpumem_allocate_sync(gpumem_pool* pool, size_t bytes, size_t alignment, void** pointer) noexcept {
  if (!pool) return refuse("gpumem_allocate_sync", no_pool);
  if (!pointer) return refuse("gpumem_allocate_sync", "the out-pointer is NULL");
  return outcome_of([&] { *pointer = pool->allocate_sync(bytes, alignment); });
}

gpumem_outcome gpumem_free_sync(gpumem_pool* pool, void* pointer, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_free_sync", no_pool);
  return outcome_of([&] { pool->free_sync(pointer, bytes); });
}

gpumem_outcome gpumem_record_use(gpumem_pool* pool, void* pointer, void* stream) noexcept {
  if (!pool) return refuse("gpumem_record_use", no_pool);
  return outcome_of([&] { pool->record_use(pointer, stream_of(stream)); });
}

gpumem_outcome gpumem_synchronize(gpumem_pool* pool, uint64_t nanoseconds) noexcept {
  if (!pool) return refuse("gpumem_synchronize", no_pool);
  constexpr std::uint64_t longest = 3'600'000'000'000; // an hour: no clock overflows if this is added
  return outcome_of([&] {
    if (pool->synchronize(std::chrono::nanoseconds{std::min<std::uint64_t>(nanoseconds, longest)})) return;
    gpumem::extend::throw_failure({gpumem::outcome::deadline, 0, 0});
  });
}

gpumem_outcome gpumem_trim(gpumem_pool* pool, size_t keep, size_t* given_back) noexcept {
  if (!pool) return refuse("gpumem_trim", no_pool);
  if (!given_back) return refuse("gpumem_trim", "the out-pointer is NULL");
  return outcome_of([&] { *given_back = pool->trim(keep); });
}

gpumem_outcome gpumem_reserve(gpumem_pool* pool, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_reserve", no_pool);
  return outcome_of([&] { pool->reserve(bytes); });
}

gpumem_outcome gpumem_set_limit(gpumem_pool* pool, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_set_limit", no_pool);
  return outcome_of([&] { pool->set_limit(bytes); });
}

gpumem_outcome gpumem_reset_peaks(gpumem_pool* pool) noexcept {
  if (!pool) return refuse("gpumem_reset_peaks", no_pool);
  return outcome_of([&] { pool->reset_peaks(); });
}

gpumem_outcome gpumem_pool_of(void const* pointer, gpumem_pool** pool) noexcept {
  if (!pool) return refuse("gpumem_pool_of", "the out-pointer is NULL");
  return outcome_of(
      [&] { *pool = gpumem::detail::forked() ? nullptr : gpumem::c::made_pools::instance().find(pointer, false); });
}

gpumem_outcome gpumem_free_pointer(void* pointer) noexcept {
  if (!pointer || gpumem::detail::forked()) return GPUMEM_GRANTED;
  gpumem_pool* owner = nullptr;
  auto const freed = outcome_of([&] {
    if (!gpumem::driver_api::driver_alive()) return;
    owner = gpumem::c::made_pools::instance().find(pointer, true);
    if (owner && owner->try_free(pointer)) return;
    throw std::invalid_argument{"gpumem: no pool has a live block at this address"};
  });
  if (owner) gpumem_release(owner);
  return freed;
}

gpumem_outcome gpumem_open_to(gpumem_pool* pool, int device) noexcept {
  if (!pool) return refuse("gpumem_open_to", no_pool);
  return outcome_of([&] { pool->open_to(device); });
}

gpumem_outcome gpumem_device(gpumem_pool* pool, int* device) noexcept {
  if (!pool) return refuse("gpumem_device", no_pool);
  if (!device) return refuse("gpumem_device", "the out-pointer is NULL");
  *device = pool->device();
  return GPUMEM_GRANTED;
}

gpumem_outcome gpumem_host_accessible(gpumem_pool* pool, int* accessible) noexcept {
  if (!pool) return refuse("gpumem_host_accessible", no_pool);
  if (!accessible) return refuse("gpumem_host_accessible", "the out-pointer is NULL");
  return outcome_of([&] {
    auto const resource = pool->resource();
    *accessible = gpumem::extend::traits_by_property(resource).host_accessible;
  });
}

gpumem_outcome gpumem_read_statistics(gpumem_pool* pool, gpumem_statistics* statistics) noexcept {
  if (!pool) return refuse("gpumem_read_statistics", no_pool);
  if (!statistics) return refuse("gpumem_read_statistics", "the out-pointer is NULL");
  bool copied = false;
  auto const outcome = outcome_of([&] { copied = copy_known(outside(pool->statistics()), statistics); });
  if (outcome != GPUMEM_GRANTED || copied) return outcome;
  return refuse("gpumem_read_statistics", "the size in the statistics is too small: write sizeof(gpumem_statistics)");
}

gpumem_outcome gpumem_visit_ranges(gpumem_pool* pool, void (*visit)(void* context, gpumem_range const* range),
                                   void* context) noexcept {
  if (!pool) return refuse("gpumem_visit_ranges", no_pool);
  if (!visit) return refuse("gpumem_visit_ranges", "the function is NULL");
  return outcome_of([&] { pool->visit_ranges([&](gpumem_range const& one) { visit(context, &one); }); });
}

gpumem_outcome gpumem_set_label(gpumem_pool* pool, void const* pointer, char const* label) noexcept {
  if (!pool) return refuse("gpumem_set_label", no_pool);
  return outcome_of([&] {
    if (pointer) pool->set_label(pointer, label ? label : "");
  });
}

gpumem_outcome gpumem_write_snapshot(gpumem_pool* pool, char const* path, char const* options) noexcept {
  if (!pool) return refuse("gpumem_write_snapshot", no_pool);
  if (!path) return refuse("gpumem_write_snapshot", "the path is NULL");
  return outcome_of([&] { pool->write_snapshot(gpumem::c::parse_snapshot_options(path, options ? options : "")); });
}

gpumem_outcome gpumem_find(gpumem_pool* pool, void const* pointer, gpumem_block* block) noexcept {
  if (!pool) return refuse("gpumem_find", no_pool);
  if (!block) return refuse("gpumem_find", "the out-pointer is NULL");
  bool copied = false;
  auto const outcome = outcome_of([&] { copied = copy_known(outside(pool->find(pointer)), block); });
  if (outcome != GPUMEM_GRANTED || copied) return outcome;
  return refuse("gpumem_find", "the size in the block is too small: write sizeof(gpumem_block)");
}
