// The driver functions that allocate and free in stream order.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "entry.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

constexpr std::uint64_t operation_time = 500; // simulated nanoseconds

/// Enqueues an operation without work, which marks the place of an allocation or free in the stream's order. The
/// operation waits for the frees in `behind`.
CUresult enqueue_point(simulation& device, const stream_ptr& on, const char* action, std::shared_ptr<record> behind) {
  operation work;
  work.action = action;
  work.duration = operation_time;
  work.awaited = std::move(behind);
  return device.enqueue(on, std::move(work));
}

CUresult refuse_capture(const stream& on) {
  return on.capturing ? static_cast<CUresult>(gpumem_simulator_missing("stream-ordered memory in a capture"))
                      : CUDA_SUCCESS;
}

CUresult allocate(simulation& device, CUdeviceptr* pointer, std::size_t bytes, memory_pool* from,
                  const stream_ptr& on) {
  if (pointer == nullptr || bytes == 0 || from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = refuse_capture(*on); refused != CUDA_SUCCESS) return refused;
  if (device.legacy_breaks_capture(*on)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (device.faults.at_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  device.pools.collect(device);
  std::shared_ptr<record> behind;
  const pool_block* made = from->take(device, *on, bytes, behind);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = made->address;
  const CUresult enqueued = enqueue_point(device, on, "allocation from a pool", std::move(behind));
  device.order.granted(device.newest_point(on, "allocation from a pool"), from->owner, made->address, bytes);
  return enqueued;
}

/// Reports a free of an address that is not a live block of a pool.
CUresult reject(simulation& device, const actor& who, std::uint64_t address) {
  device.order.reject_free(who, address, 0);
  return CUDA_ERROR_INVALID_VALUE;
}

bool is_block(const memory_pool* pool, std::uint64_t address) {
  const pool_block* const found = pool == nullptr ? nullptr : pool->find(address);
  return found != nullptr && found->address == address;
}

} // namespace

namespace simulated {

CUresult free_pooled_by_host(simulation& device, memory_pool& pool, std::uint64_t address, const char* call) {
  const actor who = device.host_point(call);
  if (!is_block(&pool, address)) return reject(device, who, address);
  device.order.lent_back(who, pool.owner, address, pool.find(address)->bytes);
  device.order.returned(who, pool.owner, address, pool.find(address)->bytes);
  pool.put(address, nullptr);
  return CUDA_SUCCESS;
}

} // namespace simulated

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream handle) {
  return enter_on<"cuMemAllocAsync">(handle, [&](simulation& device, const stream_ptr& on) {
    const CUmemLocation at{CU_MEM_LOCATION_TYPE_DEVICE, on->home->device};
    return allocate(device, pointer, bytes, device.pools.current_of(device, at, CU_MEM_ALLOCATION_TYPE_PINNED), on);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream handle) {
  return enter_on<"cuMemAllocFromPoolAsync">(handle, [&](simulation& device, const stream_ptr& on) {
    return allocate(device, pointer, bytes, device.pools.find(pool), on);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  return enter_on<"cuMemFreeAsync">(handle, [&](simulation& device, const stream_ptr& on) {
    if (pointer == 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = refuse_capture(*on); refused != CUDA_SUCCESS) return refused;
    memory_pool* const pool = device.pools.holding(pointer);
    if (!is_block(pool, pointer)) return reject(device, device.point(on, "free to a pool"), pointer);
    if (const CUresult result = enqueue_point(device, on, "free to a pool", nullptr); result != CUDA_SUCCESS)
      return result;
    const actor who = device.newest_point(on, "free to a pool");
    const std::uint64_t bytes = pool->find(pointer)->bytes;
    device.order.lent_back(who, pool->owner, pointer, bytes);
    device.order.returned(who, pool->owner, pointer, bytes);
    const pool_free ended{{on, on->number}, on->component, on->order};
    pool->put(pointer, &ended);
    return CUDA_SUCCESS;
  });
}

} // extern "C"
