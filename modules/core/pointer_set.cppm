// pointer_set: the pointers that a resource with several upstreams got from one of them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <unordered_set>
export module gpumem:pointer_set;
import :std;
import :sync;

namespace gpumem::detail {

/// The pointers that are live in one of several upstreams. A resource inserts a pointer after the upstream has
/// allocated it, and takes it out before the upstream frees it. If the upstream refuses the free, it puts the pointer
/// back. Any thread.
export class pointer_set {
  using set = std::unordered_set<void const*>;

public:
  using record = set::node_type;

  /// Inserts the pointer. Returns false, and inserts nothing, if the host has no memory.
  bool insert(void const* pointer) noexcept;
  /// Makes room for `count` pointers that insert_prepared() will insert. Returns false, and makes no room, if the host
  /// has no memory.
  bool prepare(std::size_t count) noexcept;
  /// insert_prepared() inserts a pointer into room made by prepare(); cancel() gives up room for `count` pointers.
  void insert_prepared(void const* pointer) noexcept;
  void cancel(std::size_t count) noexcept;
  /// Takes the pointer out of the set. Returns its record; an empty one if it was not in the set. Takes no lock while
  /// the set is empty.
  record take(void const* pointer) noexcept {
    return count_.load(std::memory_order_acquire) != 0 ? take_locked(pointer) : record{};
  }
  /// Inserts a pointer again that take() has taken out. Allocates no host memory. Does nothing for an empty record.
  void put_back(record record) noexcept;

  bool contains(void const* pointer) noexcept;

private:
  record take_locked(void const* pointer) noexcept;
  void reserve(std::size_t count) GPUMEM_REQUIRES(mutex_);

  std::atomic<std::size_t> count_{0};
  sync::mutex mutex_;
  set pointers_ GPUMEM_GUARDED_BY(mutex_);
  std::vector<set::node_type> spare_ GPUMEM_GUARDED_BY(mutex_); // nodes for prepared pointers
};

} // namespace gpumem::detail
