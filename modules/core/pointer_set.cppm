// pointer_set: the pointers that a resource with several upstreams got from one of them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <unordered_set>
export module gpumem:pointer_set;
import :std;
import :sync;

namespace gpumem::detail {

/// The pointers that are live in one of several upstreams. A resource inserts a pointer after the upstream has
/// allocated it, and erases it before the upstream frees it. Any thread.
export class pointer_set {
public:
  /// Inserts the pointer. Returns false, and inserts nothing, if the host has no memory.
  bool insert(void const* pointer) noexcept;
  /// Makes room for `count` pointers that insert_prepared() will insert. Returns false, and makes no room, if the host
  /// has no memory.
  bool prepare(std::size_t count) noexcept;
  /// insert_prepared() inserts a pointer into room made by prepare(); cancel() gives up room for `count` pointers.
  void insert_prepared(void const* pointer) noexcept;
  void cancel(std::size_t count) noexcept;
  /// Erases the pointer. Returns whether it was in the set. Takes no lock while the set is empty.
  bool erase(void const* pointer) noexcept {
    return count_.load(std::memory_order_acquire) != 0 && erase_locked(pointer);
  }

  bool contains(void const* pointer) noexcept;

private:
  using set = std::unordered_set<void const*>;
  bool erase_locked(void const* pointer) noexcept;
  void reserve(std::size_t count) __attribute__((requires_capability(mutex_)));

  std::atomic<std::size_t> count_{0};
  sync::mutex mutex_;
  set pointers_ __attribute__((guarded_by(mutex_)));
  std::vector<set::node_type> spare_ __attribute__((guarded_by(mutex_))); // nodes for prepared pointers
};

} // namespace gpumem::detail
