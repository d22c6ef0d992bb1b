// The functions of gpumem.h.
// SPDX-License-Identifier: Apache-2.0
#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "failure.hpp"
#include "options.hpp"

import gpumem;

using gpumem::c::outcome_of;
using gpumem::c::refuse;

struct gpumem_pool {
  std::atomic<std::size_t> references{1};
  gpumem::pool_resource<gpumem::cuda_resource> resource;

  gpumem_pool(gpumem::device where, gpumem::pool_options options) : resource{where, std::move(options)} {}
};

namespace {

constexpr char const* no_pool = "the pool is NULL";

gpumem::stream_ref stream_of(void* stream) noexcept { return gpumem::stream_ref{static_cast<CUstream>(stream)}; }

/// Copies the fields that both sides know, but for the size, which stays the caller's. False if there are none.
template <class Told> bool tell(Told const& told, Told* asked) noexcept {
  constexpr auto first = sizeof(std::size_t);
  if (asked->size < first + sizeof(std::uint64_t)) return false;
  std::memcpy(reinterpret_cast<char*>(asked) + first, reinterpret_cast<char const*>(&told) + first,
              std::min(asked->size, sizeof(Told)) - first);
  return true;
}

gpumem_figures outside(gpumem::figures const& f) noexcept {
  return {sizeof(gpumem_figures),
          f.live,
          f.granted,
          f.reserved,
          f.largest_free,
          f.limit,
          f.peak_live,
          f.peak_reserved,
          f.allocations,
          f.frees,
          f.failures,
          f.growths,
          f.releases,
          f.joins,
          f.joins_refused,
          f.reuse_own,
          f.reuse_ordered,
          f.reuse_completed,
          f.reuse_waited,
          f.reuse_drained,
          f.free,
          f.free_ranges,
          f.unfinished,
          f.unfinished_streams,
          f.quarantined,
          f.cached,
          f.reuse_near};
}

gpumem_block outside(gpumem::block_info const& b) noexcept {
  return {sizeof(gpumem_block), b.base, b.bytes, b.granted, b.stream, b.live};
}

} // namespace

gpumem_pool* gpumem::c::make_pool(int device, pool_options options) {
  catch_misuse();
  return new gpumem_pool{gpumem::device{device}, std::move(options)};
}

uint32_t gpumem_version(void) noexcept {
  static_assert(GPUMEM_VERSION == GPUMEM_BUILT_VERSION, "gpumem.h is of another version than the project");
  return GPUMEM_VERSION;
}

char const* gpumem_outcome_name(gpumem_outcome outcome) noexcept {
  bool const known = outcome >= GPUMEM_GRANTED && outcome <= GPUMEM_DRIVER_ERROR;
  return known ? gpumem::to_string(static_cast<gpumem::outcome>(outcome)) : "unknown outcome";
}

char const* gpumem_last_error(void) noexcept { return gpumem::c::last_sentence(); }

gpumem_outcome gpumem_make_pool(int device, char const* options, gpumem_pool** pool) noexcept {
  if (!pool) return refuse("gpumem_make_pool", "the out-pointer is NULL");
  return outcome_of([&] { *pool = gpumem::c::make_pool(device, gpumem::c::parse_options(options ? options : "")); });
}

gpumem_outcome gpumem_retain(gpumem_pool* pool) noexcept {
  if (!pool) return refuse("gpumem_retain", no_pool);
  pool->references.fetch_add(1, std::memory_order_relaxed);
  return GPUMEM_GRANTED;
}

gpumem_outcome gpumem_release(gpumem_pool* pool) noexcept {
  if (!pool) return refuse("gpumem_release", no_pool);
  if (pool->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete pool;
  return GPUMEM_GRANTED;
}

gpumem_outcome gpumem_allocate(gpumem_pool* pool, void* stream, size_t bytes, size_t alignment,
                               void** pointer) noexcept {
  if (!pool) return refuse("gpumem_allocate", no_pool);
  if (!pointer) return refuse("gpumem_allocate", "the out-pointer is NULL");
  return outcome_of([&] { *pointer = pool->resource.allocate(stream_of(stream), bytes, alignment); });
}

gpumem_outcome gpumem_free(gpumem_pool* pool, void* stream, void* pointer) noexcept {
  if (!pool) return refuse("gpumem_free", no_pool);
  return outcome_of([&] { pool->resource.deallocate(stream_of(stream), pointer); });
}

gpumem_outcome gpumem_free_sized(gpumem_pool* pool, void* stream, void* pointer, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_free_sized", no_pool);
  return outcome_of([&] { pool->resource.deallocate(stream_of(stream), pointer, bytes); });
}

gpumem_outcome gpumem_allocate_sync(gpumem_pool* pool, size_t bytes, size_t alignment, void** pointer) noexcept {
  if (!pool) return refuse("gpumem_allocate_sync", no_pool);
  if (!pointer) return refuse("gpumem_allocate_sync", "the out-pointer is NULL");
  return outcome_of([&] { *pointer = pool->resource.allocate_sync(bytes, alignment); });
}

gpumem_outcome gpumem_free_sync(gpumem_pool* pool, void* pointer, size_t bytes) noexcept {
  if (!pool) return refuse("gpumem_free_sync", no_pool);
  return outcome_of([&] { pool->resource.deallocate_sync(pointer, bytes); });
}

gpumem_outcome gpumem_record_use(gpumem_pool* pool, void* pointer, void* stream) noexcept {
  if (!pool) return refuse("gpumem_record_use", no_pool);
  return outcome_of([&] { pool->resource.record_use(pointer, stream_of(stream)); });
}

gpumem_outcome gpumem_settle(gpumem_pool* pool, uint64_t nanoseconds) noexcept {
  if (!pool) return refuse("gpumem_settle", no_pool);
  constexpr std::uint64_t longest = 3'600'000'000'000; // an hour, which any clock can be set forward by
  return outcome_of([&] {
    if (pool->resource.settle(std::chrono::nanoseconds{std::min<std::uint64_t>(nanoseconds, longest)})) return;
    gpumem::throw_failure({gpumem::outcome::deadline, 0, 0});
  });
}

gpumem_outcome gpumem_trim(gpumem_pool* pool, size_t keep, size_t* given_back) noexcept {
  if (!pool) return refuse("gpumem_trim", no_pool);
  if (!given_back) return refuse("gpumem_trim", "the out-pointer is NULL");
  return outcome_of([&] { *given_back = pool->resource.trim(keep); });
}

gpumem_outcome gpumem_read_figures(gpumem_pool* pool, gpumem_figures* figures) noexcept {
  if (!pool) return refuse("gpumem_read_figures", no_pool);
  if (!figures) return refuse("gpumem_read_figures", "the out-pointer is NULL");
  bool told = false;
  auto const outcome = outcome_of([&] { told = tell(outside(pool->resource.figures()), figures); });
  if (outcome != GPUMEM_GRANTED || told) return outcome;
  return refuse("gpumem_read_figures", "the size in the figures is too small: write sizeof(gpumem_figures)");
}

gpumem_outcome gpumem_find(gpumem_pool* pool, void const* pointer, gpumem_block* block) noexcept {
  if (!pool) return refuse("gpumem_find", no_pool);
  if (!block) return refuse("gpumem_find", "the out-pointer is NULL");
  bool told = false;
  auto const outcome =
      outcome_of([&] { told = tell(outside(pool->resource.find(pointer).value_or(gpumem::block_info{})), block); });
  if (outcome != GPUMEM_GRANTED || told) return outcome;
  return refuse("gpumem_find", "the size in the block is too small: write sizeof(gpumem_block)");
}
