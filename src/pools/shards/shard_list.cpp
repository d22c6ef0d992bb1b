// Gives shards to threads and takes them back, finds blocks in them, and takes the locks of all shards.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
module gpumem:shard_list.impl;
import :shard_list;
import :block;
import :pool_shard;
import :range_allocator;
import :shard_roles;
import :sync;

namespace gpumem::detail {

shard_list::search_order::search_order(shard_list const& list, pool_shard& first, bool loans) noexcept {
  order_[count_++] = &first;
  for (auto const& each : list.all()) {
    if (each.get() != &first && (loans || !each->lends)) order_[count_++] = each.get();
  }
}

pool_shard& shard_list::add(bool locked) {
  auto const count = count_.load(std::memory_order_relaxed);
  auto& made = *(shards_[count] = std::make_unique<pool_shard>(poll_share_, locked));
  if (count == 0) {
    for (auto& each : slots_) {
      each.shard.store(&made, std::memory_order_relaxed);
      each.last_freed_shard.store(&made, std::memory_order_relaxed);
      each.contention.store(first_contention(), std::memory_order_relaxed);
    }
  }
  count_.store(count + 1, std::memory_order_release);
  return made;
}

// A collision at another thread's shard does not count: a shard of its own would not spare the thread that one. The
// count has the collisions of this window and of the window before it.
void shard_list::lock_contended(pool_shard& shard) noexcept {
  shard.mutex.lock();
  assert_shard_held();
  auto& slot = own_slot();
  if (shard_per_thread_ || &shard != shards_[0].get() || slot.shard.load(std::memory_order_relaxed) != &shard) return;
  auto const now = shard.counters.locked_calls, passed = now - slot.window_begin;
  auto count = slot.contention.load(std::memory_order_relaxed);
  if (passed >= tuning::collision_window) {
    count = passed < 2 * tuning::collision_window ? slot.in_window : 0;
    slot.in_window = 0;
    slot.window_begin = now;
  }
  ++slot.in_window;
  slot.contention.store(count + 1, std::memory_order_relaxed);
}

bool shard_list::begin_allocation(std::size_t bytes, bool may_add) noexcept {
  auto const earlier = active(), used = in_use_;
  auto& slot = own_slot();
  bool const shared = is_shared(bytes);
  auto const& last = shared ? *shards_[0] : *slot.shard.load(std::memory_order_relaxed);
  if (last.counters.locked_calls - last.round_begin >= calls_per_round) end_round();
  if (shared) return note_change(earlier, used);
  if (may_add && slot.contention.load(std::memory_order_relaxed) >= sync::contention_threshold) add_for_thread();
  auto& mine = *slot.shard.load(std::memory_order_relaxed);
  if (mine.rounds_left == 0) active_.fetch_add(1, std::memory_order_relaxed);
  mine.rounds_left = pool_shard::rounds_active;
  return note_change(earlier, used);
}

// Returns whether the number of active shards, or of those in use, has changed. If it has, publishes the live bytes,
// since the peak is to be more exact while one shard is active.
bool shard_list::note_change(std::size_t earlier, std::size_t used) noexcept {
  bool const changed = active() != earlier || in_use_ != used;
  if (changed) {
    for (auto const& each : all()) peak_.publish(each->live);
  }
  return changed;
}

void shard_list::add_for_thread() noexcept {
  auto& slot = own_slot();
  slot.contention.store(0, std::memory_order_relaxed);
  slot.in_window = 0;
  if (slot.shard.load(std::memory_order_relaxed) != shards_[0].get())
    return; // another thread has got one for this slot
  try {
    auto* const spare = find_spare();
    auto& given = spare ? *spare : add(true); // the caller holds the locks of all shards, so a new one starts locked
    given.spare = false;
    ++in_use_;
    // With the option no thread stays at the first shard, so that one would count as active beside the thread's own.
    if (shard_per_thread_) given.rounds_left = std::exchange(shards_[0]->rounds_left, 0);
    slot.shard.store(&given, std::memory_order_release);
  } catch (std::bad_alloc const&) {
    slot.contention.store(first_contention(), std::memory_order_relaxed);
  } // the thread shares the first shard until it has met others again; with the option until its next request
}

pool_shard* shard_list::find_spare() noexcept {
  for (auto const& each : all()) {
    if (each->spare && !each->lends) return each.get();
  }
  return nullptr;
}

pool_shard& shard_list::lending() {
  for (auto const& each : all()) {
    if (each->lends) return *each;
  }
  auto& made = add(true); // the caller holds the locks of all shards
  made.lends = true;
  made.spare = true;
  return made;
}

bool shard_list::end_round() noexcept {
  auto const earlier = active(), used = in_use_;
  auto& first = *shards_[0];
  unsigned now = 0;
  for (auto const& each : all()) {
    if (each->rounds_left > 0) --each->rounds_left;
    now += each->rounds_left > 0;
    each->round_begin = each->counters.locked_calls;
  }
  for (auto& each : slots_) {
    auto& shard = *each.shard.load(std::memory_order_relaxed);
    if (&shard == &first || shard.live_blocks > 0 || (shard.rounds_left > 0 && now > 1)) continue;
    first.rounds_left =
        std::max(first.rounds_left, std::exchange(shard.rounds_left, 0)); // more than 0 if it is the only one
    shard.spare = true;
    --in_use_;
    ++shard.counters.joins;
    each.contention.store(first_contention(), std::memory_order_relaxed);
    each.shard.store(&first, std::memory_order_release);
  }
  if (now != earlier) active_.store(now, std::memory_order_relaxed); // all threads read it
  return note_change(earlier, used);
}

// If threads have shards, the count of live bytes lags behind by at most a sixteenth of the reserved bytes, and so does
// its peak. With 1/512 for each shard, two threads spent a third of their time on the count that they share.
void shard_list::count_live_of_many(pool_shard& shard, std::int64_t change, std::int64_t nearby,
                                    std::size_t reserved) noexcept {
  auto const parts = single() ? max_shards : all().size();
  peak_.count(shard.live, change, nearby, static_cast<std::int64_t>(reserved / (16 * parts)));
}

void shard_list::reset_peak(std::int64_t cached) noexcept {
  for (auto const& each : all()) peak_.publish(each->live);
  peak_.reset(std::max(live_bytes() - cached, std::int64_t{0}));
}

std::int64_t shard_list::live_bytes() const noexcept {
  std::int64_t sum = 0;
  for (auto const& each : all()) sum += each->live.bytes;
  return sum;
}

std::int64_t shard_list::live_blocks() const noexcept {
  std::int64_t sum = 0;
  for (auto const& each : all()) sum += each->live_blocks;
  return sum;
}

std::size_t shard_list::free_bytes() const noexcept {
  std::size_t sum = 0;
  for (auto const& each : all()) sum += each->ranges.free_bytes();
  return sum;
}

std::uint64_t shard_list::locked_calls() const noexcept {
  std::uint64_t sum = 0;
  for (auto const& each : all()) sum += each->counters.locked_calls;
  return sum;
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
GPUMEM_NO_LOCK_ANALYSIS void shard_list::lock_all() noexcept {
  auto& first = *shards_[0];
  if (!first.mutex.try_lock()) lock_contended(first);
  for (auto const& each : all().subspan(1)) each->mutex.lock();
}

GPUMEM_NO_LOCK_ANALYSIS void shard_list::unlock_all() noexcept {
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
