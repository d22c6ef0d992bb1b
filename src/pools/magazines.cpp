// Keeping and granting blocks near a thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
module gpumem:magazines.impl;
import :magazines;
import :block;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::int64_t quantum = 64 << 10;
// So rarely does a free go another way, on which evidence may be recorded.
inline constexpr std::uint32_t most_unrecorded_frees = 64;
inline constexpr std::uint32_t most_refused = 1 << 14;
inline constexpr std::uint32_t most_misfits = 16;

} // namespace

void magazines::make_own() {
  auto const number = sync::thread_number() % slot_count;
  kept_[number] = std::make_unique<slot>();
  slots_[number].store(kept_[number].get(), std::memory_order_release);
}

block& magazines::pop(slot& mine, cabinet& in, stack& from) noexcept {
  auto& found = *from.top.load(std::memory_order_relaxed);
  from.top.store(found.next, std::memory_order_relaxed);
  --in.count;
  found.become(block_state::put_out);
  mine.allowance += static_cast<std::int64_t>(found.bytes);
  mine.counts.cached -= found.bytes;
  count_not_live(mine, -static_cast<std::int64_t>(found.requested.load(std::memory_order_relaxed)));
  return found;
}

block* magazines::take(timeline& order, std::size_t bytes, std::size_t requested) noexcept {
  auto* const mine = own();
  if (!mine) return nullptr;
  auto& in = mine->cabinets[order.index() % cabinet_count];
  auto& from = stack_of(in, bytes);
  if (!from.holds(bytes)) return nullptr;
  std::scoped_lock const held{mine->guard};
  if (!from.holds(bytes) || !allowed()) return nullptr;
  if (in.order != &order) return nullptr;
  auto& found = pop(*mine, in, from);
  from.misfits.store(0, std::memory_order_relaxed);
  found.tags.clear();
  auto const before = found.requested.load(std::memory_order_relaxed);
  found.requested.store(requested, std::memory_order_relaxed);
  count_not_live(*mine, static_cast<std::int64_t>(before) - static_cast<std::int64_t>(requested));
  found.stream.store(&order, std::memory_order_relaxed);
  found.become(block_state::granted);
  ++mine->counts.allocations;
  return &found;
}

// One stream a cabinet: the first that comes while it is empty.
bool magazines::claim(cabinet& one, timeline& order) noexcept {
  if (one.order == &order) return true;
  if (one.count > 0) return false;
  one.order = &order;
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
  return true;
}

// Credit comes in quanta, so that threads rarely meet at it.
bool magazines::afford(slot& mine, std::size_t bytes) noexcept {
  auto const need = static_cast<std::int64_t>(bytes) - mine.allowance;
  if (need <= 0) return true;
  for (auto const want : {std::max(need, quantum), need}) {
    if (credit_.load(std::memory_order_relaxed) < want) continue;
    if (credit_.fetch_sub(want, std::memory_order_relaxed) >= want) {
      mine.allowance += want;
      return true;
    }
    credit_.fetch_add(want, std::memory_order_relaxed);
  }
  ++mine.counts.refused;
  if (++mine.refused >= most_refused) starved_.store(true, std::memory_order_relaxed);
  return false;
}

// Whether this free should leave evidence, which it does where it takes the pool's lock.
bool magazines::due(cabinet& one, timeline& order, std::size_t bytes) noexcept {
  one.unrecorded_bytes += bytes;
  bool const many = ++one.unrecorded_frees >= most_unrecorded_frees ||
                    one.unrecorded_bytes >= most_unrecorded_.load(std::memory_order_relaxed);
  if (!many) return order.asked();
  order.count_unrecorded(one.unrecorded_frees, one.unrecorded_bytes, 0);
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
  return true;
}

// The epoch is read after all that the caller has enqueued.
void magazines::keep(slot& mine, cabinet& in, stack& on, block& freed, timeline& order) noexcept {
  freed.tags.assign({&order, order.now()});
  freed.become(block_state::cached);
  freed.next = on.top.load(std::memory_order_relaxed);
  on.top.store(&freed, std::memory_order_relaxed);
  on.bytes.store(freed.bytes, std::memory_order_relaxed);
  on.misfits.store(0, std::memory_order_relaxed);
  ++in.count;
  mine.allowance -= static_cast<std::int64_t>(freed.bytes);
  mine.counts.cached += freed.bytes;
  ++mine.counts.frees;
  count_not_live(mine, static_cast<std::int64_t>(freed.requested.load(std::memory_order_relaxed)));
}

// A size that is not asked for any more makes place for others, one block at a time. Whether it is to, counted roughly.
bool magazines::misfit(stack& on) noexcept {
  auto const count = on.misfits.load(std::memory_order_relaxed) + 1;
  on.misfits.store(count % most_misfits, std::memory_order_relaxed);
  return count == most_misfits;
}

magazines::result magazines::put(block& freed, timeline& order) noexcept {
  if (freed.bytes > most_.load(std::memory_order_relaxed)) return {false, nullptr};
  auto* const mine = own();
  if (!mine) return {false, nullptr};
  auto& in = mine->cabinets[order.index() % cabinet_count];
  auto& on = stack_of(in, freed.bytes);
  if (on.holds_other(freed.bytes) && !misfit(on)) return {false, nullptr};
  std::scoped_lock const held{mine->guard};
  if (!allowed() || !claim(in, order) || due(in, order, freed.bytes)) return {false, nullptr};
  block* out = nullptr;
  if (on.holds_other(freed.bytes)) {
    out = &pop(*mine, in, on);
    if (on.top.load(std::memory_order_relaxed)) return {false, out};
  }
  if (!afford(*mine, freed.bytes)) return {false, out};
  keep(*mine, in, on, freed, order);
  return {true, out};
}

void magazines::allow(bool on, std::size_t credit, std::size_t most_unrecorded) noexcept {
  credit_.fetch_add(static_cast<std::int64_t>(credit) - static_cast<std::int64_t>(total_), std::memory_order_relaxed);
  total_ = credit;
  most_unrecorded_.store(most_unrecorded, std::memory_order_relaxed);
  most_.store(on ? credit : 0, std::memory_order_relaxed);
}

block* magazines::sweep() noexcept {
  block* all = nullptr;
  starved_.store(false, std::memory_order_relaxed);
  for (auto& each : kept_) {
    if (!each) continue; // no thread of this number came by
    std::scoped_lock const held{each->guard};
    each->refused = 0;
    for (auto& in : each->cabinets) {
      for (auto at = in.stacks.begin(); in.count > 0; ++at) {
        while (at->top.load(std::memory_order_relaxed)) {
          auto& found = pop(*each, in, *at);
          found.next = all;
          all = &found;
        }
      }
    }
    credit_.fetch_add(each->allowance, std::memory_order_relaxed);
    each->allowance = 0;
  }
  return all;
}

void magazines::lock_and_add(slot* one, thread_counts& sum) noexcept {
  if (!one) return;
  one->guard.lock();
  sum.not_live += one->not_live.load(std::memory_order_relaxed);
  sum.allocations += one->counts.allocations;
  sum.frees += one->counts.frees;
  sum.refused += one->counts.refused;
  sum.cached += one->counts.cached;
  sum.allowance += one->allowance;
}

} // namespace gpumem::detail
