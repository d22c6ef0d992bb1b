// The driver functions of memory pools: they create, configure and describe pools, and allocate and free in stream
// order.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "entry.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

/// Runs `body(device, pool)` for a live pool. Real drivers invalidate a capture at a call for a pool's attributes
/// (cccl#11360). The simulated driver invalidates it at each call for a pool.
template <entry_name Name, class Body> CUresult enter_pool(CUmemoryPool handle, Body&& body) noexcept {
  return enter<Name, (quiet | unsafe_in_capture)>([&](simulation& device) GPUMEM_REQUIRES(simulation_mutex) {
    memory_pool* const pool = device.pools.find(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : std::forward<Body>(body)(device, *pool);
  });
}

CUresult set_policy(bool& policy, void const* value) {
  policy = *static_cast<int const*>(value) != 0;
  return CUDA_SUCCESS;
}

/// Sets the peak `mark` to the current value `now`. As with a real driver, the caller asks for that by the value 0; all
/// other values are errors.
CUresult reset_mark(std::uint64_t& mark, std::uint64_t now, void const* value) {
  if (*static_cast<cuuint64_t const*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  mark = now;
  return CUDA_SUCCESS;
}

template <class T, class Value> CUresult answer(void* place, Value value) {
  *static_cast<T*>(place) = static_cast<T>(value);
  return CUDA_SUCCESS;
}

template <class Find> CUresult find_pool(CUmemoryPool* pool, CUmemLocation const* location, Find find) {
  if (pool == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memory_pool* const found = find(*location);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pool = found->handle;
  return CUDA_SUCCESS;
}

CUmemLocation at_device(CUdevice ordinal) { return {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}; }

bool knows(simulation const& device, CUdevice ordinal) { return ordinal >= 0 && ordinal < device.options().devices; }

/// Gives or revokes the access of a device. The pool's own device always keeps its access.
CUresult give_access(simulation const& device, memory_pool& pool, CUmemAccessDesc const& access) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!knows(device, access.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  bool const resident = pool.kind() == memory_kind::device && pool.device() == access.location.id;
  if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    pool.peers.insert(access.location.id);
  else if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && !resident)
    pool.peers.erase(access.location.id);
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

bool reaches(memory_pool const& pool, CUmemLocation const& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return pool.kind() != memory_kind::device;
  if (pool.kind() == memory_kind::managed) return true;
  bool const resident = pool.kind() == memory_kind::device && pool.device() == location.id;
  return resident || pool.peers.contains(location.id);
}

} // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, CUmemPoolProps const* properties) {
  return enter<"cuMemPoolCreate", unsafe_in_capture>([&](simulation& device) {
    if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult const result = pool_table::check_properties(*properties, device.options().devices);
    if (result == CUDA_SUCCESS) *pool = device.pools.create(device, *properties).handle;
    return result;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return enter_pool<"cuMemPoolDestroy">(handle, [](simulation& device, memory_pool& pool) {
    if (device.pools.is_default(pool)) return CUDA_ERROR_INVALID_VALUE;
    if (device.current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT; // a real driver perhaps needs no context here
    // CUDA's documentation allows the destruction of a pool before its frees are complete. But driver 580 crashes then,
    // in this call or a later one; at times also if they are complete, and the host has not waited for them.
    bool const pending =
        std::any_of(pool.unawaited.begin(), pool.unawaited.end(), [](position const& freed) { return !freed.done(); });
    if (pending || (device.strict_pool_destroy() && !pool.unawaited.empty()))
      device.report_finding(
          finding_kind::early_pool_destroy,
          pending ? "a memory pool is destroyed while frees to it are pending: drivers crash"
                  : "a memory pool is destroyed before the host has synchronized with each stream that freed "
                    "to it, with an event recorded there afterwards, or with the context; a query does not "
                    "count: drivers crash");
    device.pools.destroy(device, pool);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  return enter_pool<"cuMemPoolTrimTo">(handle, [&](simulation& device, memory_pool& pool) {
    pool.trim(device, keep, keep, true);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return enter_pool<"cuMemPoolSetAttribute">(handle, [&](simulation&, memory_pool& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return set_policy(pool.follow_events, value);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return set_policy(pool.opportunistic, value);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return set_policy(pool.internal, value);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool.release_threshold = *static_cast<cuuint64_t const*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return reset_mark(pool.reserved_high, pool.reserved, value);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return reset_mark(pool.used_high, pool.used, value);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return enter_pool<"cuMemPoolGetAttribute">(handle, [&](simulation&, memory_pool const& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return answer<int>(value, pool.follow_events);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return answer<int>(value, pool.opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return answer<int>(value, pool.internal);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return answer<cuuint64_t>(value, pool.release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return answer<cuuint64_t>(value, pool.reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return answer<cuuint64_t>(value, pool.reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return answer<cuuint64_t>(value, pool.used);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return answer<cuuint64_t>(value, pool.used_high);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, CUmemAccessDesc const* rights, size_t count) {
  return enter_pool<"cuMemPoolSetAccess">(handle, [&](simulation& device, memory_pool& pool) {
    if (rights == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
      if (CUresult const result = give_access(device, pool, rights[i]); result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return enter_pool<"cuMemPoolGetAccess">(handle, [&](simulation&, memory_pool const& pool) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = reaches(pool, *location) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  return enter<"cuMemGetDefaultMemPool", quiet>([&](simulation& device) {
    return find_pool(pool, location,
                     [&](CUmemLocation const& at) { return device.pools.default_of(device, at, type); });
  });
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  return enter<"cuMemGetMemPool", quiet>([&](simulation& device) {
    return find_pool(pool, location,
                     [&](CUmemLocation const& at) { return device.pools.current_of(device, at, type); });
  });
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool handle) {
  return enter_pool<"cuMemSetMemPool">(handle, [&](simulation& device, memory_pool& pool) {
    if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return device.pools.set_current(*location, type, &pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return enter<"cuDeviceGetDefaultMemPool", quiet>([&](simulation& device) {
    if (!knows(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    CUmemLocation const at = at_device(ordinal);
    return find_pool(pool, &at, [&](CUmemLocation const& location) {
      return device.pools.default_of(device, location, CU_MEM_ALLOCATION_TYPE_PINNED);
    });
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return enter<"cuDeviceGetMemPool", quiet>([&](simulation& device) {
    if (!knows(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    CUmemLocation const at = at_device(ordinal);
    return find_pool(pool, &at, [&](CUmemLocation const& location) {
      return device.pools.current_of(device, location, CU_MEM_ALLOCATION_TYPE_PINNED);
    });
  });
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return enter_pool<"cuDeviceSetMemPool">(handle, [&](simulation& device, memory_pool& pool) {
    if (!knows(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    return device.pools.set_current(at_device(ordinal), CU_MEM_ALLOCATION_TYPE_PINNED, &pool)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  });
}

} // extern "C"

namespace {

constexpr std::uint64_t operation_time = 500; // simulated nanoseconds

/// Enqueues an operation without work, which marks the place of an allocation or free in the stream's order. The
/// operation waits for the frees in `frees_record`.
CUresult enqueue_point(simulation& device, stream_ptr const& stream, char const* action,
                       std::shared_ptr<record> frees_record) {
  operation work;
  work.action = action;
  work.duration = operation_time;
  work.awaited = std::move(frees_record);
  return device.enqueue(stream, std::move(work));
}

CUresult refuse_capture(stream const& stream) {
  return stream.capturing ? static_cast<CUresult>(gpumem_simulator_missing("stream-ordered memory in a capture"))
                          : CUDA_SUCCESS;
}

CUresult allocate(simulation& device, CUdeviceptr* pointer, std::size_t bytes, memory_pool* memory_pool,
                  stream_ptr const& stream) {
  if (pointer == nullptr || bytes == 0 || memory_pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult const refused = refuse_capture(*stream); refused != CUDA_SUCCESS) return refused;
  if (device.legacy_breaks_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (device.faults.at_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  device.pools.collect(device);
  std::shared_ptr<record> frees_record;
  pool_block const* made = memory_pool->allocate(device, *stream, bytes, frees_record);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = made->address;
  CUresult const enqueued = enqueue_point(device, stream, "allocation from a pool", std::move(frees_record));
  device.order.granted(device.newest_point(stream, "allocation from a pool"), memory_pool->owner, made->address, bytes);
  return enqueued;
}

/// Reports a free of an address that is not a live block of a pool.
CUresult reject(simulation& device, actor const& actor, std::uint64_t address) {
  device.order.reject_free(actor, address, 0);
  return CUDA_ERROR_INVALID_VALUE;
}

bool is_block(memory_pool const* pool, std::uint64_t address) {
  pool_block const* const found = pool == nullptr ? nullptr : pool->find(address);
  return found != nullptr && found->address == address;
}

} // namespace

namespace simulated {

CUresult free_pooled_by_host(simulation& device, memory_pool& pool, std::uint64_t address, char const* call) {
  actor const actor = device.host_point(call);
  if (!is_block(&pool, address)) return reject(device, actor, address);
  device.order.lent_back(actor, pool.owner, address, pool.find(address)->bytes);
  device.order.returned(actor, pool.owner, address, pool.find(address)->bytes);
  pool.free(address, nullptr);
  return CUDA_SUCCESS;
}

} // namespace simulated

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream handle) {
  return enter_on<"cuMemAllocAsync">(handle, [&](simulation& device, stream_ptr const& stream) {
    CUmemLocation const at{CU_MEM_LOCATION_TYPE_DEVICE, stream->home->device};
    return allocate(device, pointer, bytes, device.pools.current_of(device, at, CU_MEM_ALLOCATION_TYPE_PINNED), stream);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream handle) {
  return enter_on<"cuMemAllocFromPoolAsync">(handle, [&](simulation& device, stream_ptr const& stream) {
    return allocate(device, pointer, bytes, device.pools.find(pool), stream);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  return enter_on<"cuMemFreeAsync">(handle, [&](simulation& device, stream_ptr const& stream) {
    if (pointer == 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult const refused = refuse_capture(*stream); refused != CUDA_SUCCESS) return refused;
    memory_pool* const pool = device.pools.holding(pointer);
    if (!is_block(pool, pointer)) return reject(device, device.point(stream, "free to a pool"), pointer);
    if (CUresult const result = enqueue_point(device, stream, "free to a pool", nullptr); result != CUDA_SUCCESS)
      return result;
    actor const actor = device.newest_point(stream, "free to a pool");
    std::uint64_t const bytes = pool->find(pointer)->bytes;
    device.order.lent_back(actor, pool->owner, pointer, bytes);
    device.order.returned(actor, pool->owner, pointer, bytes);
    pool_free const ended{{stream, stream->number}, stream->component, stream->order};
    pool->free(pointer, &ended);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
