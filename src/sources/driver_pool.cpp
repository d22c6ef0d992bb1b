// Creates driver pools from options, allocates from them, frees to them, and ends them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cuda.h>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module gpumem:driver_pool.impl;
import :driver_pool;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :misuse;
import :process;
import :shared_state;
import :source_state;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t driver_alignment = 256;

// Returns the device's stream for allocations that must be ready when the call returns: the host waits for this stream,
// so any stream can use the memory. The stream is never destroyed.
stream& ready_stream(device device) {
  static auto* const mutex = new sync::mutex;
  static auto* const streams = new std::map<int, stream>;
  sync::lock const lock{*mutex};
  return streams->try_emplace(device.ordinal(), device).first->second;
}

// Destroys the pool. Makes its device current for that, as all functions that change a pool do.
void destroy(CUmemoryPool pool, device device) noexcept {
  call_on(device, [pool] { return driver().mem_pool_destroy(pool); });
}

} // namespace

driver_pool_state::driver_pool_state(char const* name, driver_pool const& pool)
    : source_state{name, driver_alignment}, pool_{pool}, ready_{ready_stream(pool.where)} {}

expected<void*, failure> driver_pool_state::allocate_memory(stream_key const& key, std::size_t bytes,
                                                            std::size_t) noexcept {
  if (pool_.limit != 0 && bytes > pool_.limit) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  auto const on = usable_handle(key);
  if (pool_.host_ready || !on) return allocate_ready(bytes);
  CUdeviceptr address{};
  auto const result =
      call_on_stream(key, *on, [&] { return driver().mem_alloc_from_pool_async(&address, bytes, pool_.handle, *on); });
  if (result != CUDA_SUCCESS) return unexpected<failure>{refused(result, bytes)};
  return reinterpret_cast<void*>(address);
}

expected<void*, failure> driver_pool_state::allocate_ready(std::size_t bytes) noexcept {
  CUdeviceptr address{};
  auto result = call_on(
      pool_.where, [&] { return driver().mem_alloc_from_pool_async(&address, bytes, pool_.handle, ready_.get()); });
  if (result != CUDA_SUCCESS) return unexpected<failure>{refused(result, bytes)};
  result = call_on(pool_.where, [&] { return driver().stream_synchronize(ready_.get()); });
  if (result == CUDA_SUCCESS) return reinterpret_cast<void*>(address);
  driver().mem_free_async(address, ready_.get());
  ready_pending_.store(true, std::memory_order_relaxed);
  return unexpected<failure>{refused(result, bytes)};
}

CUresult driver_pool_state::wait_for_allocations() noexcept {
  if (!ready_pending_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  return call_on(pool_.where, [&] { return driver().stream_synchronize(ready_.get()); });
}

failure driver_pool_state::refused(CUresult error, std::size_t bytes) noexcept {
  return refusal_of(pool_.where.interpret(error), bytes);
}

bool driver_pool_state::free_in_order(stream_key const& key, block const& returned) noexcept {
  if (pool_.where.lost()) return true;
  if (key.identity().is_host()) return free_memory(returned);
  auto const on = usable_handle(key);
  if (!on) return false;
  auto const result = call_on_stream(
      key, *on, [&] { return driver().mem_free_async(reinterpret_cast<CUdeviceptr>(returned.base), *on); });
  return !capture_forbids(pool_.where.interpret(result));
}

// On memory of a pool, cuMemFree does not wait: the caller must know that all use is over.
bool driver_pool_state::free_memory(block const& returned) noexcept {
  if (pool_.where.lost()) return true;
  auto const result =
      call_on(pool_.where, [&] { return driver().mem_free(reinterpret_cast<CUdeviceptr>(returned.base)); });
  return !capture_forbids(pool_.where.interpret(result));
}

bool driver_pool_state::may_free_inside(stream_key const& freed_on, stream_key const& now) const noexcept {
  return freed_on.identity().timeline().kind() != stream_kind::foreign || freed_on == now;
}

void driver_pool_state::mark_lost(stream_key const&, CUresult error) noexcept { pool_.where.mark_lost(error); }

void driver_pool_state::reserve(std::size_t bytes) {
  auto const allocated = allocate_ready(bytes);
  if (!allocated) throw_failure(allocated.error());
  // Waits for the free, since the driver counts the memory as used until the free has run.
  check(call_on(pool_.where,
                [&] {
                  auto const freed = driver().mem_free_async(reinterpret_cast<CUdeviceptr>(*allocated), ready_.get());
                  return freed == CUDA_SUCCESS ? driver().stream_synchronize(ready_.get()) : freed;
                }),
        "cuMemFreeAsync");
}

driver_pool_view_state& driver_pool_view_state::of(driver_pool const& pool) {
  pool.where.require();
  static auto* const mutex = new sync::mutex;
  static auto* const states = new std::map<std::tuple<CUmemoryPool, int, bool>, driver_pool_view_state>;
  sync::lock const lock{*mutex};
  return states->try_emplace({pool.handle, pool.where.ordinal(), pool.host_ready}, pool).first->second;
}

async_state::owned_pool::~owned_pool() {
  if (kept) return;
  // The free that a failed allocation has enqueued on this stream must run before the destruction.
  call_on(pool.where, [&] { return driver().stream_synchronize(ready.get()); });
  destroy(pool.handle, pool.where);
}

async_state::async_state(driver_pool_kind kind, class device device, async_options options)
    : async_state{kind, owned_pool{ready_stream(device), make_driver_pool(kind, device, options)}, std::move(options)} {
}

async_state::async_state(driver_pool_kind kind, owned_pool pool, async_options options)
    : driver_pool_state{name_of(kind), pool.pool}, options_{std::move(options)} {
  if (options_.initial_size != 0) reserve(options_.initial_size);
  pool.kept = true;
}

// If the host cannot wait for all frees, the pool is never destroyed, but trimmed to the memory that is still in use.
async_state::~async_state() {
  if (driver_alive() && !where().lost()) {
    end_being_current();
    if (wait_for_frees()) {
      destroy(handle(), where());
    } else if (!where().lost()) {
      call_on(where(), [this] { return driver().mem_pool_trim_to(handle(), 0); });
    }
  }
  if (!forked()) return_events();
}

void async_state::make_current() {
  where().require();
  was_current_.store(true, std::memory_order_relaxed);
  set_current_driver_pool({handle(), where()});
}

// If this pool is current, the driver makes the default pool current when it destroys this pool. The destructor cannot
// always destroy the pool, so this function makes the default pool current first.
void async_state::end_being_current() noexcept try {
  if (was_current_.load(std::memory_order_relaxed) && current_driver_pool(where()).handle == handle()) {
    set_current_driver_pool(default_driver_pool(where()));
  }
} catch (cuda_error const&) { // the pool then stays current until the driver destroys it
}

// Notes a free on the stream, so that the destructor can wait for it. Allocates host memory only at the first free on a
// stream. If the host has no memory, or no event can be recorded, the pool is never destroyed.
void async_state::freed_in_order(stream_key const& key) noexcept try {
  auto const handle = usable_handle(key); // the stream that free_in_order() has used
  if (!handle || where().lost()) return;
  auto& timeline = key.identity().timeline();
  bool const legacy = *handle == CU_STREAM_LEGACY;
  sync::lock const lock{frees_mutex_};
  auto& freed = frees_[legacy ? static_cast<void const*>(timeline.context()) : &timeline];
  if (timeline.kind() == stream_kind::own) {
    freed.timeline = &timeline;
  } else {
    record_free(freed, key, *handle);
  }
} catch (...) { free_without_event_.store(true, std::memory_order_relaxed); }

// Records an event after the free. Since the last free, the timeline may have passed to another stream. The old
// stream's event must not be recorded on the new stream before the host has synchronized with the event. A free must
// not wait, so an old event that is not complete is kept in `dead_`, and a new one is recorded.
void async_state::record_free(freed_stream& freed_stream, stream_key const& key, CUstream handle) {
  auto const context = key.identity().timeline().context();
  auto const id = handle == CU_STREAM_LEGACY ? 0 : key.identity().id();
  if (freed_stream.event && freed_stream.id != id) {
    dead_.push_back(std::exchange(freed_stream.event, nullptr));
    relaxed_capture const mode;
    std::erase_if(dead_, [](pooled_event* event) {
      bool const done = driver().event_query(event->handle) == CUDA_SUCCESS &&
                        driver().event_synchronize(event->handle) == CUDA_SUCCESS;
      if (done) give_event(event);
      return done;
    });
  }
  context_guard const context_scope{is_default_handle(handle) ? context : nullptr};
  check(context_scope.result(), "cuCtxPushCurrent");
  bool const first = !freed_stream.event;
  if (first) freed_stream.event = take_event(context);
  freed_stream.id = id;
  auto const result = where().interpret(driver().event_record(freed_stream.event->handle, handle));
  bool const keeps = result == CUDA_SUCCESS || !first; // otherwise the event has the record of an earlier owner
  if (!keeps) give_event(std::exchange(freed_stream.event, nullptr));
  check(result, "cuEventRecord");
  // If another thread has begun a capture on the stream meanwhile, the event may belong to its graph, and then does not
  // show when the free has run.
  if (!is_capturing(handle)) return;
  free_without_event_.store(true, std::memory_order_relaxed);
  give_event(std::exchange(freed_stream.event, nullptr));
}

bool async_state::wait_for_frees() noexcept {
  relaxed_capture const mode;
  if (free_without_event_.load(std::memory_order_relaxed) || wait_for_allocations() != CUDA_SUCCESS) return false;
  auto const synchronize = [this](pooled_event const* event) {
    return where().interpret(call_on(where(), [&] { return driver().event_synchronize(event->handle); }));
  };
  sync::lock const lock{frees_mutex_};
  for (auto const& [stream, freed] : frees_) {
    auto const waited = freed.timeline
                            ? stream_key::of(*freed.timeline, freed.timeline->handle()).identity().wait_on_host()
                            : synchronize(freed.event);
    if (waited != CUDA_SUCCESS) return false;
  }
  return std::ranges::all_of(dead_, [&](pooled_event const* event) { return synchronize(event) == CUDA_SUCCESS; });
}

void async_state::return_events() noexcept {
  sync::lock const lock{frees_mutex_};
  for (auto const& [stream, freed] : frees_)
    if (freed.event) give_event(freed.event);
  for (auto* const event : dead_) give_event(event);
}

expected<void*, failure> async_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                   std::size_t alignment) noexcept {
  if (closed()) {
    report_misuse({misuse::kind::use_after_close, nullptr, bytes, 0, key.identity().id(), "async_resource"});
    return unexpected<failure>{failure{outcome::closed, 0, bytes}};
  }
  auto result = driver_pool_state::try_allocate(key, bytes, alignment);
  if (result) add_live();
  return result;
}

void async_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
  if (source_state::deallocate(key, pointer, bytes, alignment)) drop_live();
}

namespace {

CUmemAllocationHandleType handle_type(export_handle kind) {
  switch (kind) {
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
  auto const larger_than = [&](char const* bound, std::size_t bytes) {
    return std::string{"initial_size is larger than "} + bound + ": " + std::to_string(options.initial_size) + " > " +
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

CUmemLocation location_of(driver_pool_kind kind, device device, async_options const& options) {
  switch (kind) {
  case driver_pool_kind::managed: return {CU_MEM_LOCATION_TYPE_NONE, 0};
  case driver_pool_kind::pinned:
    if (options.numa_node >= 0) return {CU_MEM_LOCATION_TYPE_HOST_NUMA, options.numa_node};
    return {CU_MEM_LOCATION_TYPE_HOST, 0};
  default: return {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()};
  }
}

CUmemoryPool create(driver_pool_kind kind, device device, async_options const& options) {
  CUmemPoolProps properties{};
  bool const managed = kind == driver_pool_kind::managed;
  properties.allocType = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = handle_type(options.exported_as);
  properties.location = location_of(kind, device, options);
  properties.maxSize = options.limit;
  if (options.hardware_decompression) properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
  CUmemoryPool made = nullptr;
  relaxed_capture const relaxed; // here and below: otherwise calls for a pool end a capture in global mode
  auto const result = driver().mem_pool_create(&made, &properties);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_failure(refusal_of(result, options.initial_size));
  if (result != CUDA_SUCCESS) {
    auto const text = std::string{"gpumem: device "} + std::to_string(device.ordinal()) +
                      " cannot create a driver pool for " + name_of(kind) + " with these options";
    throw_cuda_error(result, text.c_str());
  }
  return made;
}

template <class Value> void set(CUmemoryPool pool, CUmemPool_attribute attribute, Value value) {
  relaxed_capture const relaxed;
  check(driver().mem_pool_set_attribute(pool, attribute, &value), "cuMemPoolSetAttribute");
}

std::size_t bytes_of(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  relaxed_capture const relaxed;
  check(driver().mem_pool_get_attribute(pool, attribute, &value), "cuMemPoolGetAttribute");
  return value;
}

void give_access(CUmemoryPool pool, device peer, CUmemAccess_flags flags) {
  CUmemAccessDesc const access{{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, flags};
  relaxed_capture const relaxed;
  check(driver().mem_pool_set_access(pool, &access, 1), "cuMemPoolSetAccess");
}

void apply(driver_pool_kind kind, driver_pool const& new_pool, async_options const& options) {
  auto const pool = new_pool.handle;
  set<cuuint64_t>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, options.release_threshold);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, options.reuse_after_events);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, options.reuse_completed);
  set<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, options.reuse_by_inserted_waits);
  // At first only the host can access pinned memory. All devices can access managed memory.
  if (kind == driver_pool_kind::pinned) give_access(pool, new_pool.where, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (auto const peer : options.peers) {
    if (kind != driver_pool_kind::managed && peer != new_pool.where) {
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

driver_pool make_driver_pool(driver_pool_kind kind, class device device, async_options const& options) {
  check_options(kind, options);
  device.require();
  device_guard const scope{device};
  driver_pool const made{create(kind, device, options), device, kind != driver_pool_kind::device, options.limit};
  try {
    apply(kind, made, options);
  } catch (...) {
    relaxed_capture const relaxed;
    driver().mem_pool_destroy(made.handle);
    throw;
  }
  return made;
}

driver_pool default_driver_pool(class device device) {
  CUmemoryPool handle = nullptr;
  check(driver().device_get_default_mem_pool(&handle, device.ordinal()), "cuDeviceGetDefaultMemPool");
  return {handle, device};
}

driver_pool default_driver_pool(driver_pool_kind kind, class device device) {
  bool const managed = kind == driver_pool_kind::managed;
  auto location = location_of(kind, device, {});
  auto const type = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemoryPool handle = nullptr;
  device_guard const scope{device};
  if (auto const result = driver().mem_get_default_mem_pool(&handle, &location, type); result != CUDA_SUCCESS) {
    auto const text = std::string{"gpumem: the driver has no default pool of "} + (managed ? "managed" : "pinned") +
                      " memory for device " + std::to_string(device.ordinal());
    throw_cuda_error(result, text.c_str());
  }
  if (!managed) give_access(handle, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  return {handle, device, true};
}

driver_pool current_driver_pool(class device device) {
  CUmemoryPool handle = nullptr;
  check(driver().device_get_mem_pool(&handle, device.ordinal()), "cuDeviceGetMemPool");
  return {handle, device};
}

void set_current_driver_pool(driver_pool const& pool) {
  relaxed_capture const relaxed;
  check(driver().device_set_mem_pool(pool.where.ordinal(), pool.handle), "cuDeviceSetMemPool");
}

driver_pool foreign_driver_pool(CUmemoryPool handle, class device device, bool host_ready) {
  if (!handle) throw std::invalid_argument{"gpumem: the handle of the driver pool is null"};
  return {handle, device, host_ready};
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
