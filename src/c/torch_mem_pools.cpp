// Makes the memory of PyTorch's pools, finds the pool that serves a stream, and enforces the limit.
// SPDX-License-Identifier: Apache-2.0
#include "torch_mem_pools.hpp"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "failure.hpp"
#include "stack.hpp"

import gpumem;

#include "held_pool.hpp"

namespace gpumem::c {

void torch_limit::set(std::size_t limit) {
  pool_.set_limit(limit);
  limit_.store(limit, std::memory_order_relaxed);
}

bool torch_limit::draw(std::size_t bytes) noexcept {
  bool fits = false;
  outcome_of([&] { fits = pool_.add_outside(bytes); });
  if (fits) drawn_.fetch_add(bytes, std::memory_order_relaxed);
  return fits;
}

void torch_limit::give_back(std::size_t bytes) noexcept {
  drawn_.fetch_sub(bytes, std::memory_order_relaxed);
  outcome_of([&] { pool_.remove_outside(bytes); });
}

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

// Returns true also if the host has no memory to count the live blocks: the pool then ends later.
bool is_used(std::shared_ptr<gpumem_pool> const& memory) noexcept {
  bool used = memory != nullptr;
  if (used) outcome_of([&] { used = memory.use_count() > 1 || memory->statistics().live > 0; });
  return used;
}

} // namespace

torch_mem_pools::mem_pool& torch_mem_pools::known(id pool) {
  auto const found = pools_.find(pool);
  if (found == pools_.end()) throw unknown_pool(pool);
  return found->second;
}

torch_mem_pools::mem_pool& torch_mem_pools::add_use(id pool, gpumem_callbacks const* segments) {
  if (segments && (segments->size < sizeof *segments || !segments->allocate || !segments->free))
    throw std::invalid_argument{"gpumem: the callbacks lack a function, or their size is too small"};
  auto& found = pools_[pool];
  count_.store(static_cast<int>(pools_.size()), std::memory_order_relaxed);
  if (found.uses++ == 0 && segments) found.segments = &segments_.emplace_back(limit_, *segments);
  return found;
}

void torch_mem_pools::retain(id pool, gpumem_callbacks const* segments) {
  support::scoped_lock const lock{mutex_};
  add_use(pool, segments);
}

void torch_mem_pools::begin(id pool, filter serves) {
  support::scoped_lock const lock{mutex_};
  if (std::ranges::any_of(open_, [&](route const& one) { return one.pool == pool; }))
    throw std::invalid_argument{"beginAllocateToPool: already recording to mempool_id"};
  std::list<route> made;
  made.push_front({pool, std::move(serves)});
  add_use(pool, nullptr);
  open_.splice(open_.begin(), made); // nothing throws any more: a pool that did not begin cannot end
  routes_.store(static_cast<int>(open_.size()), std::memory_order_release);
}

void torch_mem_pools::end(id pool) {
  support::scoped_lock const lock{mutex_};
  auto const found = std::ranges::find(open_, pool, &route::pool);
  if (found == open_.end()) throw std::invalid_argument{"endAllocatePool: not currently recording to mempool_id"};
  open_.erase(found);
  routes_.store(static_cast<int>(open_.size()), std::memory_order_release);
}

void torch_mem_pools::release(id pool) noexcept {
  support::scoped_lock const lock{mutex_};
  auto const found = pools_.find(pool);
  if (found != pools_.end() && found->second.uses > 0) --found->second.uses;
}

int torch_mem_pools::use_count(id pool) {
  support::scoped_lock const lock{mutex_};
  return known(pool).uses;
}

void torch_mem_pools::set_use_on_out_of_memory(id pool, bool enabled) {
  support::scoped_lock const lock{mutex_};
  auto const found = pools_.find(pool);
  if (found != pools_.end()) found->second.use_on_out_of_memory = enabled;
}

void torch_mem_pools::set_unsplit(id pool) {
  support::scoped_lock const lock{mutex_};
  auto& found = known(pool);
  if (found.ordered || found.graph) throw std::invalid_argument{"gpumem: the pool has given out memory already"};
  found.unsplit = true;
}

// PyTorch's filters are called under the lock. They only ask the CUDA runtime about the stream, and allocate nothing.
std::shared_ptr<gpumem_pool> torch_mem_pools::serving(void* stream) {
  support::scoped_lock const lock{mutex_};
  auto* const handle = static_cast<CUstream_st*>(stream);
  for (auto const& one : open_) {
    if (one.serves && one.serves(handle)) return memory_for(known(one.pool), stream);
  }
  return nullptr;
}

// Returns the memory of the pool that serves the stream. Once the pool has graph memory, the graph memory serves all
// requests, so that captures can use memory that was freed outside a capture.
std::shared_ptr<gpumem_pool> torch_mem_pools::memory_for(mem_pool& pool, void* stream) {
  if (!pool.graph && captures(stream)) {
    wait_.prepare();
    auto upstream = pool.segments ? make_ordered(pool)->resource() : parent_.resource();
    pool.graph = std::make_shared<held_pool<graph_resource<any_pool>>>(device_, graph_resource{std::move(upstream)});
  }
  if (pool.graph) return pool.graph;
  if (!pool.ordered) pool.ordered = make_ordered(pool);
  return pool.ordered;
}

// Makes the memory for streams that do not capture. That memory stays with the pool as long as the pool has uses, since
// a graph may still use freed blocks: for example its inputs, which were allocated outside the capture and freed since.
std::unique_ptr<gpumem_pool> torch_mem_pools::make_ordered(mem_pool const& pool) const {
  constexpr std::size_t chunk = std::size_t{2} << 20;
  if (pool.segments) {
    std::string const text = "pool(callbacks,chunk_size=2MiB,name=torch pool";
    return make_stack_over(device_, pool.segments->table(), text + (pool.unsplit ? ",pass_through=on)" : ")"));
  }
  pool_options options;
  options.pass_through = pool.unsplit;
  options.name = "torch pool of cuda:" + std::to_string(device_);
  options.chunk_size = chunk;
  return std::make_unique<held_pool<pool_resource<any_pool>>>(device_, pool_resource{parent_.resource(), options});
}

torch_mem_pools::memory torch_mem_pools::owner_of(void const* pointer) {
  support::scoped_lock const lock{mutex_};
  for (auto const& [pool, one] : pools_) {
    if (one.ordered && one.ordered->find_owned(pointer)) return {one.ordered.get(), pool, false};
    if (one.graph && one.graph->find_owned(pointer)) return {one.graph.get(), pool, true};
  }
  return {};
}

gpumem_pool::found_block torch_mem_pools::find(void const* pointer) {
  support::scoped_lock const lock{mutex_};
  for (auto const& [pool, one] : pools_) {
    for (auto const& memory : {one.ordered, one.graph}) {
      if (auto const found = memory ? memory->find(pointer) : gpumem_pool::found_block{}; found.base) return found;
    }
  }
  return {};
}

// Does not change blocks outside the graph memory.
void torch_mem_pools::restore(id pool, std::span<gpumem_range const> live,
                              std::function<void(gpumem_range const&, bool now)> const& changed) {
  support::scoped_lock const lock{mutex_};
  auto const& memory = known(pool).graph;
  if (!memory) throw std::invalid_argument{"gpumem: the pool has no graph memory to restore"};
  std::vector<gpumem_range> ranges;
  for (auto const& one : live) {
    if (one.live && memory->find(one.base).base) ranges.push_back(one);
  }
  std::vector<gpumem_range> before;
  memory->visit_ranges([&](gpumem_range const& one) {
    if (one.live) before.push_back(one);
  });
  memory->restore(ranges);
  for (auto const& one : before) changed(one, false);
  for (auto const& one : ranges) changed(one, true);
}

void torch_mem_pools::visit_ranges(std::function<void(id, gpumem_range const&)> const& visitor) {
  support::scoped_lock const lock{mutex_};
  for (auto const& [pool, one] : pools_) {
    for (auto const& memory : {&one.ordered, &one.graph}) {
      if (*memory) (*memory)->visit_ranges([&](gpumem_range const& range) { visitor(pool, range); });
    }
  }
}

torch_mem_pools::pool_map torch_mem_pools::take_ended(id only) {
  support::scoped_lock const lock{mutex_};
  pool_map ended;
  if (routes()) return ended;
  for (auto at = pools_.begin(); at != pools_.end();) {
    auto const here = at++;
    auto const& [pool, one] = *here;
    bool const asked = only == id{} || only == pool;
    if (asked && one.uses == 0 && !is_used(one.graph) && !is_used(one.ordered)) ended.insert(pools_.extract(here));
  }
  count_.store(static_cast<int>(pools_.size()), std::memory_order_relaxed);
  return ended;
}

void torch_mem_pools::put_back(pool_map& ended) noexcept {
  support::scoped_lock const lock{mutex_};
  pools_.merge(ended);
  count_.store(static_cast<int>(pools_.size()), std::memory_order_relaxed);
}

// Launched graphs may still use the memory of their pools, so this waits for the device after the pools are taken.
bool torch_mem_pools::reclaim(id only) noexcept {
  auto ended = take_ended(only); // destroyed without the lock
  bool const graphs = std::ranges::any_of(ended, [](auto const& one) { return one.second.graph != nullptr; });
  if (graphs && outcome_of([&] { wait_.wait(); }) != GPUMEM_GRANTED) put_back(ended);
  for (auto const& [pool, one] :
       ended) { // gives the memory back after its uses, for which the destructor would not wait
    if (!one.ordered || one.unsplit) continue;
    outcome_of([&] {
      one.ordered->synchronize(std::chrono::seconds{1});
      one.ordered->trim(0);
    });
  }
  return !ended.empty();
}

// Allocates without the lock, since functions of the caller may wait for a thread that frees a block.
void* torch_mem_pools::allocate_at_last(void* stream, std::size_t bytes) {
  std::vector<std::shared_ptr<gpumem_pool>> last;
  {
    support::scoped_lock const lock{mutex_};
    for (auto const& [pool, one] : pools_) {
      if (one.use_on_out_of_memory && one.ordered) last.push_back(one.ordered);
    }
  }
  for (auto const& each : last) {
    try {
      return each->allocate(stream_ref{static_cast<CUstream>(stream)}, bytes, GPUMEM_ALIGNMENT);
    } catch (std::exception const&) {} // the next pool may have memory
  }
  return nullptr;
}

void* torch_mem_pools::limited_segments::allocate(void* context, void* stream, std::size_t bytes,
                                                  std::size_t alignment) {
  auto const& self = *static_cast<limited_segments*>(context);
  if (!self.limit.draw(bytes)) return nullptr;
  auto* const memory = self.from.allocate(self.from.context, stream, bytes, alignment);
  if (!memory) self.limit.give_back(bytes);
  return memory;
}

void torch_mem_pools::limited_segments::free(void* context, void* stream, void* pointer, std::size_t bytes,
                                             std::size_t alignment) {
  auto const& self = *static_cast<limited_segments*>(context);
  self.from.free(self.from.context, stream, pointer, bytes, alignment);
  self.limit.give_back(bytes);
}

} // namespace gpumem::c
