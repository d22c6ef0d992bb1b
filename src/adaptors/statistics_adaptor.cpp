// statistics_adaptor: each of 64 threads counts in a slot of its own, and all other threads share one slot. To publish
// a slot is to add its new counts to the sums of all threads, under a lock. A level is one set of counters; push()
// starts a nested level.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <list>
#include <stdexcept>
#include <utility>
module gpumem:statistics_adaptor.impl;
import :statistics_adaptor;
import :process;
import :sync;

namespace gpumem::detail {
namespace {

// Adds to a number that other threads read, but only the calling thread writes. So no atomic addition is needed.
std::int64_t bump(std::atomic<std::int64_t>& number, std::int64_t amount) noexcept {
  auto const sum = number.load(std::memory_order_relaxed) + amount;
  number.store(sum, std::memory_order_relaxed);
  return sum;
}

} // namespace

void allocation_counters::granted(std::size_t bytes) noexcept { add(static_cast<std::int64_t>(bytes), 1); }
void allocation_counters::freed(std::size_t bytes) noexcept { add(-static_cast<std::int64_t>(bytes), -1); }

// The peak stays: these bytes were counted in it before the free.
void allocation_counters::not_freed(std::size_t bytes) noexcept {
  auto const take_back = [bytes](slot& slot) {
    for (auto const& [of, amount] :
         {std::pair{&slot.bytes, static_cast<std::int64_t>(bytes)}, std::pair{&slot.count, std::int64_t{1}}}) {
      bump(of->freed, -amount);
      bump(of->pending, amount);
    }
  };
  auto const number = sync::thread_index();
  if (number < slot_count) return take_back(slots_[number]);
  sync::spin_lock const lock{mutex_};
  take_back(slots_[slot_count]);
}

void allocation_counters::add(std::int64_t bytes, std::int64_t count) noexcept {
  auto const number = sync::thread_index();
  if (number < slot_count) {
    auto& mine = slots_[number];
    if (!add_to(mine, bytes, count)) return;
    sync::spin_lock const lock{mutex_};
    publish(mine);
  } else {
    sync::spin_lock const lock{mutex_};
    auto& shared = slots_[slot_count];
    if (add_to(shared, bytes, count)) publish(shared);
  }
}

// Adds to the slot. Returns whether the slot must be published now.
bool allocation_counters::add_to(slot& slot, std::int64_t bytes, std::int64_t count) noexcept {
  auto const level = level_number_.load(std::memory_order_relaxed);
  bool const new_level = slot.level.load(std::memory_order_relaxed) != level;
  add_share(slot.bytes, bytes, new_level);
  add_share(slot.count, count, new_level);
  if (new_level) slot.level.store(level, std::memory_order_relaxed);
  auto const gathered = [](share const& of) { return std::abs(of.pending.load(std::memory_order_relaxed)); };
  return gathered(slot.bytes) >= publish_bytes || gathered(slot.count) >= publish_count;
}

void allocation_counters::add_share(share& share, std::int64_t amount, bool new_level) noexcept {
  bump(amount >= 0 ? share.allocated : share.freed, amount >= 0 ? amount : -amount);
  auto const before = share.pending.load(std::memory_order_relaxed);
  auto const pending = before + amount;
  share.pending.store(pending, std::memory_order_relaxed);
  auto const peak = new_level ? before : share.pending_peak.load(std::memory_order_relaxed);
  share.pending_peak.store(std::max(peak, pending), std::memory_order_relaxed);
}

void allocation_counters::publish(slot& slot) noexcept {
  publish_share(slot.bytes, published_bytes_, levels_.back().bytes);
  publish_share(slot.count, published_count_, levels_.back().count);
}

void allocation_counters::publish_share(share& share, std::int64_t& published, level_base& top) noexcept {
  top.peak = std::max(top.peak, published + share.pending_peak.load(std::memory_order_relaxed));
  published += share.pending.load(std::memory_order_relaxed);
  share.pending.store(0, std::memory_order_relaxed);
  share.pending_peak.store(0, std::memory_order_relaxed);
}

// Returns the current sums and the peak of the innermost level. The peak includes amounts that slots have not published
// yet.
allocation_counters::level_base allocation_counters::sum(share slot::* quantity, level_base const& top) const noexcept {
  level_base now{0, 0, top.peak};
  for (auto const& slot : slots_) {
    auto const& share = slot.*quantity;
    auto const allocated = share.allocated.load(std::memory_order_relaxed);
    now.total += allocated;
    now.current += allocated - share.freed.load(std::memory_order_relaxed);
  }
  auto const level = level_number_.load(std::memory_order_relaxed);
  auto highest = now.current;
  for (auto const& slot : slots_) {
    if (slot.level.load(std::memory_order_relaxed) != level) continue;
    auto const& share = slot.*quantity;
    auto const fallen =
        share.pending_peak.load(std::memory_order_relaxed) - share.pending.load(std::memory_order_relaxed);
    highest = std::max(highest, now.current + fallen);
  }
  now.peak = std::max(now.peak, highest);
  return now;
}

allocation_counters::level allocation_counters::measure() const noexcept {
  auto const& top = levels_.back();
  return {sum(&slot::bytes, top.bytes), sum(&slot::count, top.count)};
}

allocation_counts allocation_counters::since_base(level const& now) const noexcept {
  auto const since = [](level_base const& at, level_base const& base) {
    return counter{at.current - base.current, at.peak - base.current, at.total - base.total};
  };
  auto const& top = levels_.back();
  return {since(now.bytes, top.bytes), since(now.count, top.count)};
}

allocation_counts allocation_counters::read() noexcept {
  if (forked()) return {};
  sync::spin_lock const lock{mutex_};
  return since_base(measure());
}

allocation_counts allocation_counters::push() {
  if (forked()) return {};
  std::list<level> added(1); // allocated before the spin mutex is taken
  sync::spin_lock const lock{mutex_};
  auto const now = measure();
  auto const above = since_base(now);
  auto const begin = [](level_base const& at) { return level_base{at.current, at.total, at.current}; };
  added.front() = {begin(now.bytes), begin(now.count)};
  auto& left = levels_.back();
  left.bytes.peak = now.bytes.peak;
  left.count.peak = now.count.peak;
  levels_.splice(levels_.end(), added);
  level_number_.fetch_add(1, std::memory_order_relaxed);
  return above;
}

allocation_counts allocation_counters::pop() {
  if (forked()) return {};
  std::list<level> removed;
  sync::spin_lock const lock{mutex_};
  if (levels_.size() == 1) throw std::out_of_range{"gpumem: there are no pushed counters to pop"};
  auto const now = measure();
  auto const nested = since_base(now);
  removed.splice(removed.end(), levels_, std::prev(levels_.end()));
  auto& top = levels_.back();
  top.bytes.peak = std::max(top.bytes.peak, now.bytes.peak);
  top.count.peak = std::max(top.count.peak, now.count.peak);
  level_number_.fetch_add(1, std::memory_order_relaxed);
  return nested;
}

} // namespace gpumem::detail
