// Creates driver pools from options; reads and sets their attributes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
module gpumem:driver_pool_options.impl;
import :driver_pool;
import :async_options;
import :cuda;
import :device;
import :driver;
import :error;
import :process;
import :source_state;
import :stream;

namespace gpumem::detail {
namespace {

CUmemAllocationHandleType handle_type(export_handle as) {
  switch (as) {
  case export_handle::none: return CU_MEM_HANDLE_TYPE_NONE;
  case export_handle::file_descriptor: return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  case export_handle::fabric: return CU_MEM_HANDLE_TYPE_FABRIC;
  }
  throw std::invalid_argument{"gpumem: unsupported export handle type of a driver pool"};
}

void check_options(driver_pool_kind kind, async_options const& options) {
  auto const refuse_if = [](bool contradiction, std::string const& why) {
    if (contradiction) throw std::invalid_argument{"gpumem: async_options: " + why};
  };
  auto const larger_than = [&](char const* what, std::size_t bytes) {
    return std::string{"initial_size is larger than "} + what + ": " + std::to_string(options.initial_size) + " > " +
           std::to_string(bytes) + " bytes";
  };
  refuse_if(options.limit != 0 && options.initial_size > options.limit, larger_than("its limit", options.limit));
  refuse_if(options.initial_size > options.release_threshold,
            larger_than("its release_threshold", options.release_threshold));
  refuse_if(options.numa_node < -1, "numa_node is below -1");
  refuse_if(options.numa_node != -1 && kind != driver_pool_kind::pinned, "numa_node is only for pinned memory");
  refuse_if(kind != driver_pool_kind::device && options.exported_as != export_handle::none,
            "only device memory can be exported");
  refuse_if(kind != driver_pool_kind::device && options.hardware_decompression,
            "hardware_decompression is only for device memory");
}

CUmemLocation location_of(driver_pool_kind kind, device where, async_options const& options) {
  switch (kind) {
  case driver_pool_kind::managed: return {CU_MEM_LOCATION_TYPE_NONE, 0};
  case driver_pool_kind::pinned:
    if (options.numa_node >= 0) return {CU_MEM_LOCATION_TYPE_HOST_NUMA, options.numa_node};
    return {CU_MEM_LOCATION_TYPE_HOST, 0};
  default: return {CU_MEM_LOCATION_TYPE_DEVICE, where.ordinal()};
  }
}

CUmemoryPool create(driver_pool_kind kind, device where, async_options const& options) {
  CUmemPoolProps properties{};
  bool const managed = kind == driver_pool_kind::managed;
  properties.allocType = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = handle_type(options.exported_as);
  properties.location = location_of(kind, where, options);
  properties.maxSize = options.limit;
  if (options.hardware_decompression) properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
  CUmemoryPool made = nullptr;
  relaxed_capture const relaxed; // here and below: otherwise calls for a pool end a capture in global mode
  auto const result = driver().mem_pool_create(&made, &properties);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_failure(refusal_of(result, options.initial_size));
  if (result != CUDA_SUCCESS) {
    auto const text = std::string{"gpumem: device "} + std::to_string(where.ordinal()) +
                      " cannot create a driver pool for " + name_of(kind) + " with these options";
    throw_cuda_error(result, text.c_str());
  }
  return made;
}

template <class Value> void set(CUmemoryPool pool, CUmemPool_attribute which, Value value) {
  relaxed_capture const relaxed;
  check(driver().mem_pool_set_attribute(pool, which, &value), "cuMemPoolSetAttribute");
}

std::size_t bytes_of(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = 0;
  relaxed_capture const relaxed;
  check(driver().mem_pool_get_attribute(pool, which, &value), "cuMemPoolGetAttribute");
  return value;
}

void give_access(CUmemoryPool pool, device peer, CUmemAccess_flags flags) {
  CUmemAccessDesc const access{{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, flags};
  relaxed_capture const relaxed;
  check(driver().mem_pool_set_access(pool, &access, 1), "cuMemPoolSetAccess");
}

void apply(driver_pool_kind kind, driver_pool const& made, async_options const& options) {
  auto const pool = made.handle;
  set<cuuint64_t>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, options.release_threshold);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, options.reuse_after_events);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, options.reuse_completed);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, options.reuse_by_inserted_waits);
  // At first only the host can access pinned memory. All devices can access managed memory.
  if (kind == driver_pool_kind::pinned) give_access(pool, made.where, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (auto const peer : options.peers) {
    if (kind != driver_pool_kind::managed && peer != made.where) {
      give_access(pool, peer, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
}

} // namespace

char const* name_of(driver_pool_kind kind) noexcept {
  switch (kind) {
  case driver_pool_kind::managed: return "async_managed_resource";
  case driver_pool_kind::pinned: return "async_pinned_resource";
  default: return "async_resource";
  }
}

driver_pool make_driver_pool(driver_pool_kind kind, class device where, async_options const& options) {
  check_options(kind, options);
  where.require();
  device_guard const scope{where};
  driver_pool const made{create(kind, where, options), where, kind != driver_pool_kind::device, options.limit};
  try {
    apply(kind, made, options);
  } catch (...) {
    relaxed_capture const relaxed;
    driver().mem_pool_destroy(made.handle);
    throw;
  }
  return made;
}

driver_pool default_driver_pool(class device where) {
  CUmemoryPool handle = nullptr;
  check(driver().device_get_default_mem_pool(&handle, where.ordinal()), "cuDeviceGetDefaultMemPool");
  return {handle, where};
}

driver_pool default_driver_pool(driver_pool_kind kind, class device where) {
  bool const managed = kind == driver_pool_kind::managed;
  auto location = location_of(kind, where, {});
  auto const type = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemoryPool handle = nullptr;
  device_guard const scope{where};
  if (auto const result = driver().mem_get_default_mem_pool(&handle, &location, type); result != CUDA_SUCCESS) {
    auto const text = std::string{"gpumem: the driver has no default pool of "} + (managed ? "managed" : "pinned") +
                      " memory for device " + std::to_string(where.ordinal());
    throw_cuda_error(result, text.c_str());
  }
  if (!managed) give_access(handle, where, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  return {handle, where, true};
}

driver_pool current_driver_pool(class device where) {
  CUmemoryPool handle = nullptr;
  check(driver().device_get_mem_pool(&handle, where.ordinal()), "cuDeviceGetMemPool");
  return {handle, where};
}

void set_current_driver_pool(driver_pool const& pool) {
  relaxed_capture const relaxed;
  check(driver().device_set_mem_pool(pool.where.ordinal(), pool.handle), "cuDeviceSetMemPool");
}

driver_pool foreign_driver_pool(CUmemoryPool handle, class device where, bool host_ready) {
  if (!handle) throw std::invalid_argument{"gpumem: the handle of the driver pool is null"};
  return {handle, where, host_ready};
}

std::size_t driver_pool_state::trim(std::size_t keep) {
  if (!driver_alive() || where().lost()) return 0;
  device_guard const scope{where()};
  auto const before = bytes_of(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  relaxed_capture const relaxed;
  check(driver().mem_pool_trim_to(handle(), keep), "cuMemPoolTrimTo");
  auto const after = bytes_of(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  return before - std::min(before, after); // other threads may have allocated meanwhile
}

driver_pool_usage driver_pool_state::usage() {
  where().require();
  return {bytes_of(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
          bytes_of(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), bytes_of(handle(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
          bytes_of(handle(), CU_MEMPOOL_ATTR_USED_MEM_HIGH)};
}

void driver_pool_state::reset_peaks() {
  where().require();
  set<cuuint64_t>(handle(), CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
  set<cuuint64_t>(handle(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
  reset_peak_live();
}

std::size_t driver_pool_state::release_threshold() {
  where().require();
  return bytes_of(handle(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
}

void driver_pool_state::set_access(class device peer, bool allowed) {
  where().require();
  device_guard const scope{where()};
  give_access(handle(), peer, allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

bool driver_pool_state::access(class device peer) {
  where().require();
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  relaxed_capture const relaxed;
  check(driver().mem_pool_get_access(&flags, handle(), &location), "cuMemPoolGetAccess");
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

statistics driver_pool_state::read_statistics() noexcept {
  if (forked()) return {};
  auto now = source_state::read_statistics();
  now.limit = pool_.limit;
  if (!driver_alive() || where().lost()) return now;
  try {
    auto const told = usage();
    now.allocated = told.used;
    now.reserved = told.reserved;
    now.peak_reserved = told.peak_reserved;
  } catch (cuda_error const&) { // the counts of source_state stay
  }
  return now;
}

} // namespace gpumem::detail
