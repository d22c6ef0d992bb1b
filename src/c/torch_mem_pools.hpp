// The memory pools that PyTorch makes on one device, those of torch.cuda.MemPool and of captured graphs, and the limit
// of PyTorch's memory there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <gpumem/gpumem_torch.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "../support/guarded_mutex.hpp"
#include "device_wait.hpp"
#include "pool.hpp"

namespace gpumem::c {

/// Limits the sum of two parts: the memory of the device's pool, and the memory that PyTorch's pools get from functions
/// of the caller ("drawn" memory). The device's pool counts drawn memory toward its limit. Any thread.
class torch_limit {
public:
  /// `limit` is the present limit of the pool; 0: no limit.
  torch_limit(gpumem_pool& pool, std::size_t limit) noexcept : pool_{pool}, limit_{limit} {}

  /// Sets the limit; 0: no limit. Throws std::invalid_argument if the device's pool is a stack whose outermost resource
  /// is not a pool.
  void set(std::size_t limit);
  /// Counts memory that is about to be drawn. If needed, gives unused memory of the device's pool back to make room for
  /// it. Returns false, and counts nothing, if the limit would be exceeded, or if the calling thread now calls an
  /// observer of the device's pages.
  bool draw(std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;

  /// Returns the bytes that were drawn and not given back.
  std::size_t drawn() const noexcept { return drawn_.load(std::memory_order_relaxed); }
  /// Returns the limit of both parts together.
  std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }

private:
  gpumem_pool& pool_;
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> drawn_{0};
};

/// The memory pools that PyTorch makes on one device. A pool gets its memory in whole chunks from the device's pool, or
/// from functions of the caller. Memory that a capturing stream gets is graph memory: it belongs to the graph, which
/// uses it at each launch, until the pool has no uses and no blocks. Functions throw exceptions; outcome_of() turns
/// them into outcomes. Any thread.
class torch_mem_pools {
public:
  using id = gpumem_torch_pool_id;
  using filter = std::function<bool(CUstream_st*)>;

  /// `limit` counts the memory that the pools get from functions of the caller.
  torch_mem_pools(int device, gpumem_pool& parent, torch_limit& limit) noexcept
      : device_{device}, parent_{parent}, limit_{limit}, wait_{device} {}

  /// Returns whether PyTorch has made a pool. A thread that owns a block of a pool always sees true.
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) > 0; }
  /// Returns whether a pool serves allocations now, so that a capture may have begun.
  bool routes() const noexcept { return routes_.load(std::memory_order_acquire) > 0; }

  /// Adds a use of a pool; makes the pool if there is none. A new pool gets its memory from the functions `segments`;
  /// null: from the device's pool. A pool that exists keeps its source.
  void retain(id pool, gpumem_callbacks const* segments);
  /// Adds a use of a pool, which then serves the allocations on streams for which the filter returns true. If the
  /// filters of several pools accept a stream, the pool that began last serves it.
  void begin(id pool, filter serves);
  void end(id pool);
  /// Ends a use. A pool without uses ends when its blocks are freed and reclaim() is called.
  void release(id pool) noexcept;
  int use_count(id pool);
  /// Sets whether allocate_at_last() may use the memory of the pool.
  void set_use_on_out_of_memory(id pool, bool enabled);
  /// Makes each block of the pool an allocation of its own. Throws std::invalid_argument after the first allocation.
  void set_unsplit(id pool);

  /// Returns the memory of the pool that serves the stream; null if no pool does.
  std::shared_ptr<gpumem_pool> serving(void* stream);
  /// The owner of a live block: its memory, the id of its pool, and whether it is graph memory. `pool` is null if no
  /// live block of these pools starts at the address. Only the owner of the block may rely on the result.
  struct memory {
    gpumem_pool* pool = nullptr;
    id of{};
    bool graph = false;
  };
  memory owner_of(void const* pointer);
  /// Returns the block or free range of these pools that holds the address. `base` is null if none does.
  gpumem_pool::found_block find(void const* pointer);
  /// Makes exactly these ranges, which an earlier visit_ranges() has passed, live in the graph memory of the pool.
  /// `changed` is called with each range that was live before (false) and with those that are live now (true).
  void restore(id pool, std::span<gpumem_range const> live,
               std::function<void(gpumem_range const&, bool now)> const& changed);
  void visit_ranges(std::function<void(id, gpumem_range const&)> const& visitor);
  /// Ends pools without uses and blocks, and gives their memory back. Considers only the pool `only`, unless that is
  /// {0, 0}. Waits for the device if a pool has graph memory. Returns whether a pool has ended.
  bool reclaim(id only) noexcept;
  /// Allocates from a pool for which set_use_on_out_of_memory() is set. Returns null if that fails.
  void* allocate_at_last(void* stream, std::size_t bytes);

private:
  /// Wraps functions of the caller that allocate and free memory (`from`). The functions in table() call them, and
  /// count the memory in `limit`.
  struct limited_segments {
    torch_limit& limit;
    gpumem_callbacks from;
    gpumem_callbacks table() noexcept { return {sizeof(gpumem_callbacks), this, &allocate, &free}; }
    static void* allocate(void* context, void* stream, std::size_t bytes, std::size_t alignment);
    static void free(void* context, void* stream, void* pointer, std::size_t bytes, std::size_t alignment);
  };
  struct mem_pool {
    int uses = 0;
    bool use_on_out_of_memory = false;
    bool unsplit = false;
    limited_segments* segments = nullptr;
    std::shared_ptr<gpumem_pool> ordered; // serves until the pool has graph memory
    std::shared_ptr<gpumem_pool> graph;   // graph memory; made for the first capturing stream
  };
  struct route {
    id pool;
    filter serves;
  };

  mem_pool& known(id pool) GPUMEM_REQUIRES(mutex_);
  mem_pool& add_use(id pool, gpumem_callbacks const* segments) GPUMEM_REQUIRES(mutex_);
  std::shared_ptr<gpumem_pool> memory_for(mem_pool& pool, void* stream) GPUMEM_REQUIRES(mutex_);
  std::unique_ptr<gpumem_pool> make_ordered(mem_pool const& pool) const;
  using pool_map = std::map<id, mem_pool>;
  pool_map take_ended(id only);
  void put_back(pool_map& ended) noexcept;

  int const device_;
  gpumem_pool& parent_;
  torch_limit& limit_;
  std::atomic<int> count_{0};
  std::atomic<int> routes_{0};
  device_wait wait_;
  support::guarded_mutex mutex_;
  pool_map pools_ GPUMEM_GUARDED_BY(mutex_);
  std::list<route> open_ GPUMEM_GUARDED_BY(mutex_); // the pool that began last comes first
  // Never removed: memory may go back through these functions after its pool has ended.
  std::list<limited_segments> segments_ GPUMEM_GUARDED_BY(mutex_);
};

} // namespace gpumem::c
