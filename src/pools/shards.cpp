// More shards, and all of their locks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
module gpumem:shards.impl;
import :shards;
import :block;
import :ranges;
import :sync;

namespace gpumem::detail {

shard_list::from::from(shard_list const& list, pool_shard& first) noexcept {
  order_[count_++] = &first;
  for (auto const& each : list.all()) {
    if (each.get() != &first) order_[count_++] = each.get();
  }
}

void shard_list::add() {
  auto const count = count_.load(std::memory_order_relaxed);
  shards_[count] = std::make_unique<pool_shard>(look_share_);
  if (count == 0) {
    for (auto& each : seats_) {
      each.home.store(shards_[0].get(), std::memory_order_relaxed);
      each.freed_into.store(shards_[0].get(), std::memory_order_relaxed);
    }
  }
  count_.store(count + 1, std::memory_order_release);
}

void shard_list::wait_for(pool_shard& one) noexcept {
  auto& mine = own_seat();
  if (!mine.alone.load(std::memory_order_relaxed)) mine.met.fetch_add(1, std::memory_order_relaxed);
  one.guard.lock();
}

void shard_list::spread() noexcept {
  auto& mine = own_seat();
  mine.met.store(0, std::memory_order_relaxed);
  if (mine.alone.load(std::memory_order_relaxed)) return; // another thread of this seat was faster
  try {
    add();
  } catch (std::bad_alloc const&) { return; }
  auto& made = *shards_[count_.load(std::memory_order_relaxed) - 1];
  made.guard.lock(); // the caller has all locks, this one too from now on
  mine.alone.store(true, std::memory_order_relaxed);
  mine.home.store(&made, std::memory_order_release);
}

shard_list::found shard_list::look_everywhere(void const* pointer, std::atomic<pool_shard*>& last) noexcept {
  auto const count = count_.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i) {
    auto* const each = shards_[i].get();
    if (auto* const that = each->granted_at(pointer)) {
      last.store(each, std::memory_order_relaxed);
      return {that, each};
    }
  }
  return {};
}

void shard_locks::lock_rest() {
  for (auto const& each : of_->all().subspan(1)) each->guard.lock();
}

void shard_locks::unlock_rest() noexcept {
  for (auto const& each : of_->all().subspan(1)) each->guard.unlock();
}

} // namespace gpumem::detail
