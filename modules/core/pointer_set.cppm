// The set of pointers by which a resource with several upstreams knows what came from one of them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_set>
export module gpumem:pointer_set;
import :std;
import :sync;

namespace gpumem::detail {

/// Pointers that are live in one of several upstreams. A resource inserts a pointer after the upstream has allocated
/// it, and erases it before the upstream frees it. Any thread.
export class pointer_set {
public:
  /// Returns false, and inserts nothing, if the host has no memory.
  bool insert(void const* pointer) noexcept;
  /// Returns whether the pointer was in the set. Takes no lock while the set is empty.
  bool erase(void const* pointer) noexcept {
    return count_.load(std::memory_order_acquire) != 0 && erase_locked(pointer);
  }

private:
  bool erase_locked(void const* pointer) noexcept;

  std::atomic<std::size_t> count_{0};
  sync::mutex mutex_;
  std::unordered_set<void const*> pointers_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
