// The pools that PyTorch makes on one device.
// SPDX-License-Identifier: Apache-2.0
#include "torch_mem_pools.hpp"

#include <cuda.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "failure.hpp"
#include "stack.hpp"

import gpumem;

#include "held_pool.hpp"

namespace gpumem::c {
namespace {

std::invalid_argument unknown_pool(torch_mem_pools::id pool) {
  return std::invalid_argument{"gpumem: there is no pool " + std::to_string(pool.first) + ", " +
                               std::to_string(pool.second)};
}

bool captures(void* stream) {
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto const asked = driver_api::driver().stream_is_capturing(static_cast<CUstream>(stream), &status);
  return asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::size_t live_of(std::shared_ptr<gpumem_pool> const& pool) { return pool ? pool->statistics().live : 0; }

} // namespace

torch_mem_pools::mem_pool& torch_mem_pools::find(id pool) {
  auto const found = pools_.find(pool);
  if (found == pools_.end()) throw unknown_pool(pool);
  return found->second;
}

torch_mem_pools::mem_pool& torch_mem_pools::add_use(id pool, gpumem_callbacks const* segments) {
  auto& found = pools_[pool];
  count_.store(static_cast<int>(pools_.size()), std::memory_order_relaxed);
  if (found.uses++ == 0 && segments) found.segments = *segments;
  return found;
}

void torch_mem_pools::retain(id pool, gpumem_callbacks const* segments) {
  support::scoped_lock const held{mutex_};
  add_use(pool, segments);
}

void torch_mem_pools::begin(id pool, filter serves) {
  support::scoped_lock const held{mutex_};
  if (std::ranges::any_of(open_, [&](route const& one) { return one.pool == pool; }))
    throw std::invalid_argument{"beginAllocateToPool: already recording to mempool_id"};
  open_.push_front({pool, std::move(serves)});
  add_use(pool, nullptr);
  routes_.store(static_cast<int>(open_.size()), std::memory_order_release);
}

void torch_mem_pools::end(id pool) {
  support::scoped_lock const held{mutex_};
  auto const found = std::ranges::find(open_, pool, &route::pool);
  if (found == open_.end()) throw std::invalid_argument{"endAllocatePool: not currently recording to mempool_id"};
  open_.erase(found);
  routes_.store(static_cast<int>(open_.size()), std::memory_order_release);
}

void torch_mem_pools::release(id pool) noexcept {
  support::scoped_lock const held{mutex_};
  auto const found = pools_.find(pool);
  if (found != pools_.end() && found->second.uses > 0) --found->second.uses;
}

int torch_mem_pools::use_count(id pool) {
  support::scoped_lock const held{mutex_};
  return find(pool).uses;
}

void torch_mem_pools::set_use_on_out_of_memory(id pool, bool on) {
  support::scoped_lock const held{mutex_};
  auto const found = pools_.find(pool);
  if (found != pools_.end()) found->second.use_on_out_of_memory = on;
}

void torch_mem_pools::set_unsplit(id pool) {
  support::scoped_lock const held{mutex_};
  find(pool).unsplit = true;
}

// The filters of PyTorch ask the runtime about the stream; they allocate nothing.
gpumem_pool* torch_mem_pools::serving(void* stream) {
  support::scoped_lock const held{mutex_};
  auto* const handle = static_cast<CUstream_st*>(stream);
  for (auto const& one : open_) {
    if (one.serves && one.serves(handle)) return &memory_for(find(one.pool), stream);
  }
  return nullptr;
}

gpumem_pool& torch_mem_pools::memory_for(mem_pool& of, void* stream) {
  bool const graph = captures(stream);
  auto& memory = graph ? of.graph : of.ordered;
  if (!memory && graph) {
    auto upstream = of.segments ? make_ordered(of)->resource() : parent_.resource();
    memory = std::make_shared<held_pool<graph_resource<any_pool>>>(device_, graph_resource{std::move(upstream)});
  }
  if (!memory) memory = make_ordered(of);
  return *memory;
}

std::unique_ptr<gpumem_pool> torch_mem_pools::make_ordered(mem_pool const& of) const {
  constexpr std::size_t chunk = std::size_t{2} << 20;
  if (of.segments) {
    std::string const text = "pool(callbacks,chunk_size=2MiB,name=torch pool";
    return make_stack_over(device_, *of.segments, text + (of.unsplit ? ",pass_through=on)" : ")"));
  }
  pool_options options;
  options.pass_through = of.unsplit;
  options.name = "torch pool of cuda:" + std::to_string(device_);
  options.chunk_size = chunk;
  if (!of.unsplit) options.release_threshold = 0;
  return std::make_unique<held_pool<pool_resource<any_pool>>>(device_, pool_resource{parent_.resource(), options});
}

torch_mem_pools::memory torch_mem_pools::owner_of(void const* pointer) {
  support::scoped_lock const held{mutex_};
  for (auto const& [pool, one] : pools_) {
    if (one.ordered && one.ordered->bytes_of(pointer)) return {one.ordered.get(), false};
    if (one.graph && one.graph->bytes_of(pointer)) return {one.graph.get(), true};
  }
  return {};
}

torch_mem_pools::id torch_mem_pools::id_of(void const* pointer) {
  support::scoped_lock const held{mutex_};
  for (auto const& [pool, one] : pools_) {
    if ((one.ordered && one.ordered->bytes_of(pointer)) || (one.graph && one.graph->bytes_of(pointer))) return pool;
  }
  return {};
}

void torch_mem_pools::visit_ranges(std::function<void(id, gpumem_range const&)> const& visitor) {
  support::scoped_lock const held{mutex_};
  for (auto const& [pool, one] : pools_) {
    for (auto const& memory : {&one.ordered, &one.graph}) {
      if (*memory) (*memory)->visit_ranges([&](gpumem_range const& range) { visitor(pool, range); });
    }
  }
}

bool torch_mem_pools::reclaim(id only) noexcept {
  std::vector<mem_pool> ended; // destroyed without the lock
  outcome_of([&] {
    support::scoped_lock const held{mutex_};
    for (auto at = pools_.begin(); at != pools_.end();) {
      auto& [pool, one] = *at;
      bool const asked = only == id{} || only == pool;
      bool const used = one.uses > 0 || live_of(one.graph) > 0 || live_of(one.ordered) > 0;
      if (!asked || used) {
        ++at;
        continue;
      }
      ended.push_back(std::move(one));
      at = pools_.erase(at);
    }
    count_.store(static_cast<int>(pools_.size()), std::memory_order_relaxed);
  });
  if (ended.empty()) return false;
  outcome_of([&] { // launches of the graphs may still use the memory
    device_guard const scope{device{device_}};
    driver_api::check(driver_api::driver().ctx_synchronize(), "cuCtxSynchronize");
  });
  return true;
}

// Without the lock, since functions of the caller may wait for a thread that frees a block.
void* torch_mem_pools::allocate_at_last(void* stream, std::size_t bytes) {
  std::vector<std::shared_ptr<gpumem_pool>> last;
  {
    support::scoped_lock const held{mutex_};
    for (auto const& [pool, one] : pools_) {
      if (one.use_on_out_of_memory && one.ordered) last.push_back(one.ordered);
    }
  }
  for (auto const& each : last) {
    try {
      return each->allocate(stream_ref{static_cast<CUstream>(stream)}, bytes, GPUMEM_ALIGNMENT);
    } catch (std::bad_alloc const&) {} // the next one may have memory
  }
  return nullptr;
}

std::size_t torch_mem_pools::reserved_elsewhere() {
  support::scoped_lock const held{mutex_};
  std::size_t sum = 0;
  for (auto const& [pool, one] : pools_) sum += one.segments && one.ordered ? one.ordered->statistics().reserved : 0;
  return sum;
}

} // namespace gpumem::c
