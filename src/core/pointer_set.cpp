// Inserts and erases pointers under a lock.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <new>
#include <unordered_set>
module gpumem:pointer_set.impl;
import :pointer_set;
import :sync;

namespace gpumem::detail {

bool pointer_set::insert(void const* pointer) noexcept try {
  sync::lock const held{mutex_};
  pointers_.insert(pointer);
  count_.store(pointers_.size(), std::memory_order_release);
  return true;
} catch (std::bad_alloc const&) { return false; }

bool pointer_set::erase_locked(void const* pointer) noexcept {
  sync::lock const held{mutex_};
  bool const found = pointers_.erase(pointer) != 0;
  count_.store(pointers_.size(), std::memory_order_release);
  return found;
}

} // namespace gpumem::detail
