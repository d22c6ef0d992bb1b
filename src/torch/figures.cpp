// PyTorch's allocator over gpumem: statistics, and errors when memory has run out.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"
#include "process_memory.hpp"
#include "settings.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>

namespace gpumem_torch {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr auto all = static_cast<std::size_t>(StatType::AGGREGATE);
constexpr auto small = static_cast<std::size_t>(StatType::SMALL_POOL);
constexpr auto large = static_cast<std::size_t>(StatType::LARGE_POOL);

Stat stat_of(gpumem_torch_figure const& figure) {
  Stat one;
  one.current = static_cast<std::int64_t>(figure.current);
  one.peak = static_cast<std::int64_t>(figure.peak);
  one.allocated = static_cast<std::int64_t>(figure.allocated);
  one.freed = static_cast<std::int64_t>(figure.freed);
  return one;
}

StatArray stats_of(gpumem_torch_figure const (&figures)[GPUMEM_TORCH_PARTS]) {
  StatArray made;
  made[all] = stat_of(figures[GPUMEM_TORCH_ALL]);
  made[small] = stat_of(figures[GPUMEM_TORCH_SMALL]);
  made[large] = stat_of(figures[GPUMEM_TORCH_LARGE]);
  return made;
}

// Returns figures for PyTorch's small and large pool. gpumem has one pool for both, which is shown as the large one.
StatArray undivided(gpumem_torch_figure const& figure) {
  StatArray made;
  made[all] = made[large] = stat_of(figure);
  return made;
}

// Returns the number of bytes in PyTorch's memory pools that are in no live block. Returns 0 if a stack of resources
// serves the device in place of gpumem's pool, and does not know its ranges.
std::size_t free_in_pools(DeviceIndex device) {
  std::size_t sum = 0;
  static_cast<void>(gpumem_torch_visit_ranges(
      device,
      [](void* context, gpumem_range const* range, unsigned long long first, unsigned long long second) {
        bool const in_pool = first != 0 || second != 0;
        if (in_pool && !range->live) *static_cast<std::size_t*>(context) += range->bytes;
      },
      &sum));
  return sum;
}

} // namespace

gpumem_torch_statistics statistics_of(DeviceIndex device) {
  gpumem_torch_statistics now{};
  now.size = sizeof now;
  check(gpumem_torch_read_statistics(device, &now));
  return now;
}

DeviceStats allocator::getDeviceStats(DeviceIndex device) {
  check_device(device);
  auto const now = statistics_of(device);
  DeviceStats stats;
  // A freed block counts as free immediately, even if work on other streams still uses its memory.
  stats.allocation = stats.active = stats_of(now.blocks);
  stats.allocated_bytes = stats.active_bytes = stats_of(now.bytes);
  stats.requested_bytes = stats_of(now.requested);
  stats.segment = undivided(now.pages);
  stats.reserved_bytes = undivided(now.reserved);
  stats.inactive_split = undivided(now.free_ranges);
  stats.inactive_split_bytes = undivided(now.free);
  stats.num_alloc_retries = states_[device].retries.load();
  stats.num_ooms = states_[device].out_of_memory.load();
  stats.num_sync_all_streams = states_[device].synchronizations.load();
  stats.num_device_alloc = static_cast<std::int64_t>(now.pages.allocated);
  stats.num_device_free = static_cast<std::int64_t>(now.pages.freed);
  stats.max_split_size = -1; // blocks of all sizes are split
  return stats;
}

void allocator::resetAccumulatedStats(DeviceIndex device) {
  check_device(device);
  check(gpumem_torch_reset_totals(device));
  states_[device].retries = 0;
  states_[device].synchronizations = 0;
  states_[device].out_of_memory = 0;
}

void allocator::resetPeakStats(DeviceIndex device) {
  check_device(device);
  check(gpumem_torch_reset_peaks(device));
}

void allocator::cacheInfo(DeviceIndex device, std::size_t* largest) {
  check_device(device);
  if (*largest == 0) {
    c10::cuda::CUDAGuard const guard{device};
    std::size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  *largest = std::max<std::size_t>(*largest, statistics_of(device).largest_free);
}

void allocator::report(void* pointer, std::int64_t bytes, DeviceIndex device) {
  auto const now = statistics_of(device);
  c10::reportMemoryUsageToProfiler(pointer, bytes, now.bytes[GPUMEM_TORCH_ALL].current, now.reserved.current,
                                   c10::Device(c10::DeviceType::CUDA, device));
}

// Runs the callbacks that PyTorch has registered to free memory. If one has freed some, tries the allocation once more.
// Before this function is called, the pool itself has already waited for memory in use.
void* allocator::retry(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises) {
  ++states_[device].retries;
  bool freed = false;
  for (auto const& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  void* pointer = nullptr;
  auto const outcome =
      freed ? gpumem_torch_allocate_rounded_block(bytes, room_for(bytes), device, stream, promises, &pointer)
            : GPUMEM_EXHAUSTED;
  if (outcome == GPUMEM_GRANTED) return pointer;
  if (outcome != GPUMEM_EXHAUSTED && outcome != GPUMEM_TOO_LARGE) check(outcome);
  throw_out_of_memory(bytes, device, stream);
}

void allocator::throw_out_of_memory(std::size_t requested, DeviceIndex device, cudaStream_t stream) {
  std::string const reason = gpumem_last_error();
  auto const bytes = rounded(room_for(requested));
  ++states_[device].out_of_memory;
  std::size_t free = 0;
  std::size_t total = 0;
  {
    c10::cuda::CUDAGuard const guard{device};
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  }
  auto const now = statistics_of(device);
  auto const live = now.bytes[GPUMEM_TORCH_ALL].current;
  auto const reserved = now.reserved.current;
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(requested), live, reserved,
                                   c10::Device(c10::DeviceType::CUDA, device));
  if (history_.active()) {
    history_.told(torch_cuda::TraceEntry::OOM, device, free, bytes, stream, {0, 0},
                  history_.gather(torch_cuda::RecordContext::STATE));
  }
  decltype(observers_) observers;
  {
    std::lock_guard const lock{observers_mutex_};
    observers = observers_;
  }
  for (auto const& observer : observers) observer(device, bytes, now.limit ? now.limit : total, free);
  std::string allowed;
  if (now.limit) allowed = format_size(now.limit) + " allowed; ";
  // PyTorch counts all memory of its memory pools as allocated, since other requests cannot get it.
  auto const in_pools = free_in_pools(device);
  auto const allocated = live + in_pools;
  std::string pools;
  if (in_pools > 0) pools = "with " + format_size(in_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(bytes), ". GPU ",
                   static_cast<int>(device), " has a total capacity of ", format_size(total), " of which ",
                   format_size(free), " is free. ", describe_processes(device), allowed, "Of the allocated memory ",
                   format_size(allocated), " is allocated by PyTorch, ", pools, "and ",
                   format_size(reserved - std::min(allocated, reserved)), " is reserved by PyTorch but unallocated. ",
                   reason);
}

void allocator::attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) {
  std::lock_guard const lock{observers_mutex_};
  observers_.push_back(std::move(observer));
}

} // namespace gpumem_torch
