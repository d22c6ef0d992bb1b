// The pools that the C library has made, for callers that know only an address.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include "pool.hpp"

#include <algorithm>
#include <ranges>
#include <vector>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// Lists the pools to which a caller still has a reference. A pool can get its chunks as blocks of another pool; it is
/// then newer than that pool. The first block in such a chunk can have the same address as the chunk. So the newest
/// pools are searched first: the caller means the block of the newer pool. Any thread, but not in a child process after
/// fork().
class made_pools {
public:
  /// Returns the one instance of the process; never destroyed, since programs free blocks until the process ends.
  static made_pools& instance() {
    static auto* const all = new made_pools;
    return *all;
  }

  /// Throws std::bad_alloc.
  void add(gpumem_pool& pool) {
    support::scoped_lock const lock{mutex_};
    pools_.push_back(&pool);
  }
  /// Drops a reference. Returns whether it was the last one; the pool has then been removed from the list.
  bool drop(gpumem_pool& pool) noexcept {
    support::scoped_lock const lock{mutex_};
    if (pool.references.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    std::erase(pools_, &pool);
    return true;
  }
  /// Returns the pool that has a live block starting at the address; null if there is none. `retain`: whether to add a
  /// reference.
  gpumem_pool* find(void const* pointer, bool retain) {
    support::scoped_lock const lock{mutex_};
    for (auto* const each : pools_ | std::views::reverse) {
      if (!each->find_owned(pointer)) continue;
      if (retain) each->references.fetch_add(1, std::memory_order_relaxed);
      return each;
    }
    return nullptr;
  }

private:
  support::guarded_mutex mutex_;
  std::vector<gpumem_pool*> pools_ GPUMEM_GUARDED_BY(mutex_);
};

} // namespace gpumem::c
