// Inserts and erases pointers under a lock.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <new>
#include <unordered_set>
#include <utility>
#include <vector>
module gpumem:pointer_set.impl;
import :pointer_set;
import :sync;

namespace gpumem::detail {

// Makes room for `count` pointers in all, so that insert_prepared() need not grow the table. The standard library's
// reserve() may also shrink the table. To grow and to shrink, it moves all pointers. Room for twice the count makes
// both rare.
void pointer_set::reserve(std::size_t count) {
  if (count > pointers_.bucket_count()) pointers_.reserve(2 * count);
}

bool pointer_set::insert(void const* pointer) noexcept try {
  sync::lock const lock{mutex_};
  reserve(pointers_.size() + spare_.size() + 1);
  pointers_.insert(pointer);
  count_.store(pointers_.size(), std::memory_order_release);
  return true;
} catch (std::bad_alloc const&) { return false; }

bool pointer_set::prepare(std::size_t count) noexcept try {
  std::vector<set::node_type> made(count);
  for (auto& each : made) {
    set one{nullptr};
    each = one.extract(one.begin());
  }
  sync::lock const lock{mutex_};
  reserve(pointers_.size() + spare_.size() + count);
  spare_.reserve(spare_.size() + count);
  for (auto& each : made) spare_.push_back(std::move(each));
  return true;
} catch (std::bad_alloc const&) { return false; }

void pointer_set::insert_prepared(void const* pointer) noexcept {
  sync::lock const lock{mutex_};
  auto node = std::move(spare_.back());
  spare_.pop_back();
  node.value() = pointer;
  pointers_.insert(std::move(node));
  count_.store(pointers_.size(), std::memory_order_release);
}

void pointer_set::cancel(std::size_t count) noexcept {
  sync::lock const lock{mutex_};
  spare_.resize(spare_.size() - count);
}

bool pointer_set::contains(void const* pointer) noexcept {
  sync::lock const lock{mutex_};
  return pointers_.contains(pointer);
}

pointer_set::record pointer_set::take_locked(void const* pointer) noexcept {
  sync::lock const lock{mutex_};
  auto taken = pointers_.extract(pointer);
  count_.store(pointers_.size(), std::memory_order_release);
  return taken;
}

// The table has room: extract() does not shrink it, and every insertion makes room for itself.
void pointer_set::put_back(record record) noexcept {
  if (!record) return;
  sync::lock const lock{mutex_};
  pointers_.insert(std::move(record));
  count_.store(pointers_.size(), std::memory_order_release);
}

} // namespace gpumem::detail
