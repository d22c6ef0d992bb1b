// Adds shards (parts of a pool with locks of their own), finds blocks in them, and takes the locks of all shards.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
module gpumem:shard_list.impl;
import :shard_list;
import :block;
import :range_allocator;
import :sync;

namespace gpumem::detail {

shard_list::search_order::search_order(shard_list const& list, pool_shard& first) noexcept {
  order_[count_++] = &first;
  for (auto const& each : list.all()) {
    if (each.get() != &first) order_[count_++] = each.get();
  }
}

void shard_list::add(bool locked) {
  auto const count = count_.load(std::memory_order_relaxed);
  shards_[count] = std::make_unique<pool_shard>(poll_share_, locked);
  if (count == 0) {
    for (auto& each : slots_) {
      each.shard.store(shards_[0].get(), std::memory_order_relaxed);
      each.last_freed_shard.store(shards_[0].get(), std::memory_order_relaxed);
      if (shard_per_thread_) each.contention.store(sync::contention_threshold, std::memory_order_relaxed);
    }
  }
  count_.store(count + 1, std::memory_order_release);
}

void shard_list::lock_contended(pool_shard& one) noexcept {
  auto& mine = own_slot();
  if (!mine.owns_shard.load(std::memory_order_relaxed)) mine.contention.fetch_add(1, std::memory_order_relaxed);
  one.mutex.lock();
}

void shard_list::add_for_thread() noexcept {
  auto& mine = own_slot();
  mine.contention.store(0, std::memory_order_relaxed);
  if (mine.owns_shard.load(std::memory_order_relaxed)) return; // another thread with this slot has added a shard
  try {
    add(true); // the caller holds the locks of all shards, so the new shard starts locked
  } catch (std::bad_alloc const&) { return; }
  auto& made = *shards_[count_.load(std::memory_order_relaxed) - 1];
  mine.owns_shard.store(true, std::memory_order_relaxed);
  mine.shard.store(&made, std::memory_order_release);
}

shard_list::lookup shard_list::find_in_all(void const* pointer, std::atomic<pool_shard*>& last) noexcept {
  auto const count = count_.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i) {
    auto* const each = shards_[i].get();
    if (auto* const that = each->find_live(pointer)) {
      last.store(each, std::memory_order_relaxed);
      return {that, each};
    }
  }
  return {};
}

// clang's thread-safety analysis does not follow locks that a loop takes.
[[clang::no_thread_safety_analysis]] void shard_list::lock_all() noexcept {
  auto& first = *shards_[0];
  if (!first.mutex.try_lock()) lock_contended(first);
  for (auto const& each : all().subspan(1)) each->mutex.lock();
}

[[clang::no_thread_safety_analysis]] void shard_list::unlock_all() noexcept {
  for (auto const& each : all().subspan(1)) each->mutex.unlock();
  shards_[0]->mutex.unlock();
}

void shard_list::wait(sync::spin_condition& changed) {
  struct {
    shard_list& of;
    void lock() noexcept { of.lock_all(); }
    void unlock() noexcept { of.unlock_all(); }
  } locks{*this};
  changed.wait(locks);
}

} // namespace gpumem::detail
