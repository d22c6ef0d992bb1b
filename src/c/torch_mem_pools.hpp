// The pools that PyTorch makes on one device: torch.cuda.MemPool, and those of captured graphs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include "pool.hpp"
#include "torch_limit.hpp"

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

namespace gpumem::c {

/// Which pool serves a stream, and the memory of each pool. It is drawn from the device's pool in whole chunks, or from
/// functions of the caller. Memory that a pool gives to a capturing stream stays the graph's until the pool is released
/// and empty. Its functions throw exceptions that outcome_of() makes outcomes of. Any thread.
class torch_mem_pools {
public:
  using id = gpumem_torch_pool_id;
  using filter = std::function<bool(CUstream_st*)>;

  /// `limit`: of the memory that pools draw from functions of the caller.
  torch_mem_pools(int device, gpumem_pool& parent, torch_limit& limit) noexcept
      : device_{device}, parent_{parent}, limit_{limit} {}

  /// Whether PyTorch has made a pool. A thread that owns a block of a pool sees true.
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) > 0; }
  /// Whether a pool serves allocations, so that a capture may have begun.
  bool routes() const noexcept { return routes_.load(std::memory_order_acquire) > 0; }

  /// Adds a use of a pool, and makes the pool if there is none. `segments`: the functions from which it draws; null for
  /// the device's pool. A pool that exists keeps its own.
  void retain(id pool, gpumem_callbacks const* segments);
  /// The same; and the pool serves the allocations for which the filter is true, before pools that began earlier.
  void begin(id pool, filter serves);
  void end(id pool);
  /// Ends a use. After the last one the pool ends once its blocks are freed and `reclaim` is called.
  void release(id pool) noexcept;
  int use_count(id pool);
  /// Lets `allocate_at_last` use the memory of the pool, or not any more.
  void set_use_on_out_of_memory(id pool, bool on);
  /// Makes each block of the pool one chunk. Throws std::invalid_argument after the first allocation.
  void set_unsplit(id pool);

  /// Returns the memory that serves the stream; null if no pool does.
  std::shared_ptr<gpumem_pool> serving(void* stream);
  /// The pool and memory of a live block; null if the address is not that of one. Only the block's owner may ask.
  struct memory {
    gpumem_pool* pool = nullptr;
    id of{};
    bool graph = false;
  };
  memory owner_of(void const* pointer);
  /// Makes exactly the live ranges, which `visit_ranges` has told before, live again in the graph memory of the pool.
  /// `changed` is called with each range that was live before (false) and with those that are live now (true).
  void restore(id pool, std::span<gpumem_range const> live,
               std::function<void(gpumem_range const&, bool now)> const& changed);
  void visit_ranges(std::function<void(id, gpumem_range const&)> const& visitor);
  /// Gives the memory of pools without uses and blocks back; of `only` alone if that is not {0, 0}. Waits for the
  /// device. Returns whether there was such a pool.
  bool reclaim(id only) noexcept;
  /// Returns memory of a pool that serves others when memory runs out; null if there is none.
  void* allocate_at_last(void* stream, std::size_t bytes);

private:
  /// Functions of the caller, within the limit.
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
    std::shared_ptr<gpumem_pool> ordered; // serves streams that do not capture, until there is graph memory
    std::shared_ptr<gpumem_pool> graph;   // made for the first capturing stream
  };
  struct route {
    id pool;
    filter serves;
  };

  mem_pool& find(id pool) __attribute__((requires_capability(mutex_)));
  mem_pool& add_use(id pool, gpumem_callbacks const* segments) __attribute__((requires_capability(mutex_)));
  std::shared_ptr<gpumem_pool> memory_for(mem_pool& of, void* stream) __attribute__((requires_capability(mutex_)));
  std::unique_ptr<gpumem_pool> make_ordered(mem_pool const& of) const;
  std::vector<mem_pool> take_ended(id only) __attribute__((requires_capability(mutex_)));

  int const device_;
  gpumem_pool& parent_;
  torch_limit& limit_;
  std::atomic<int> count_{0};
  std::atomic<int> routes_{0};
  support::guarded_mutex captures_; // held while a pool begins to serve, and while memory of graphs ends
  support::guarded_mutex mutex_;
  std::map<id, mem_pool> pools_ __attribute__((guarded_by(mutex_)));
  std::list<route> open_ __attribute__((guarded_by(mutex_))); // the newest first
  // For ever: memory of a pool may go back after the pool has ended.
  std::list<limited_segments> segments_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::c
