// The pools that the C library has made, for callers that know an address alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pool.hpp"

#include <algorithm>
#include <vector>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// The pools that have a reference. Any thread.
class made_pools {
public:
  /// Returns the one instance of the process; never destroyed, since programs free blocks until the process ends.
  static made_pools& instance() {
    static auto* const all = new made_pools;
    return *all;
  }

  /// Throws std::bad_alloc.
  void add(gpumem_pool& made) {
    support::scoped_lock const held{mutex_};
    pools_.push_back(&made);
  }
  void remove(gpumem_pool const& gone) noexcept {
    support::scoped_lock const held{mutex_};
    std::erase(pools_, &gone);
  }
  /// Returns the pool of which a live block starts at the address; null if there is none.
  gpumem_pool* find(void const* pointer) {
    support::scoped_lock const held{mutex_};
    auto const found =
        std::ranges::find_if(pools_, [&](auto* const each) { return each->bytes_of(pointer).has_value(); });
    return found == pools_.end() ? nullptr : *found;
  }

private:
  support::guarded_mutex mutex_;
  std::vector<gpumem_pool*> pools_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::c
