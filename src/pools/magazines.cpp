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

// No block takes more of the credit: of recorded traces a quarter keeps as many blocks as all of it, and refuses fewer.
inline constexpr std::size_t most_part = 4;
inline constexpr std::size_t always_kept = std::size_t{1} << 20; // where the credit is so much

} // namespace

magazines::magazines() noexcept {
  for (unsigned i = 0; i < owned_slots; ++i) slots_[i].guard.give_owner();
}

void magazines::furnish(slot& mine) {
  furniture_.push_back(std::make_unique<cabinets>());
  mine.cabinets.store(furniture_.back().get(), std::memory_order_release);
}

// The first that comes while it is empty.
bool magazines::claim_empty(cabinet& one, timeline& order) noexcept {
  if (one.count > 0) return false;
  one.order = &order;
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
  return true;
}

// Where enough have gathered this free leaves evidence, as if somebody had asked.
void magazines::pass_on(cabinet& one, timeline& order) const noexcept {
  if (order.count_unrecorded(one.unrecorded_frees, one.unrecorded_bytes, most_unrecorded())) order.ask();
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
}

block& magazines::pop_any(slot& mine, cabinet& in) noexcept {
  return pop(mine, in, *std::ranges::find_if(in.stacks, [](stack const& each) { return each.top != nullptr; }));
}

// Where only other streams come any more, what is kept for one goes, a block at a time.
block* magazines::give_way(slot& mine, cabinet& in) noexcept {
  return ++in.strangers > most_strangers ? &pop_any(mine, in) : nullptr;
}

// A thread that has gone over to other streams gives up what it keeps for the old ones, while it lacks credit.
block* magazines::take_stale(slot& mine, cabinets& all) noexcept {
  std::scoped_lock const held{mine.guard};
  if (!allowed()) return nullptr;
  for (auto& in : all) {
    if (in.count == 0 || mine.refused - in.last_put < refusals_till_stale) continue;
    return &pop_any(mine, in);
  }
  return nullptr;
}

bool magazines::borrow(slot& mine, std::int64_t need) noexcept {
  for (auto const want : {std::max(need, quantum), need}) {
    if (credit_.load(std::memory_order_relaxed) < want) continue;
    if (credit_.fetch_sub(want, std::memory_order_relaxed) >= want) {
      mine.allowance += want;
      mine.credit.fetch_add(want, std::memory_order_relaxed);
      return true;
    }
    credit_.fetch_add(want, std::memory_order_relaxed);
  }
  count_refused(mine);
  return false;
}

void magazines::allow(bool on, std::size_t credit, std::size_t most_unrecorded) noexcept {
  credit_.fetch_add(static_cast<std::int64_t>(credit) - static_cast<std::int64_t>(total_), std::memory_order_relaxed);
  total_ = credit;
  most_unrecorded_.store(most_unrecorded, std::memory_order_relaxed);
  auto const most = std::min(credit, std::max(credit / most_part, always_kept));
  most_.store(on ? most : 0, std::memory_order_relaxed);
}

block* magazines::sweep() noexcept {
  block* all = nullptr;
  starved_.store(false, std::memory_order_relaxed);
  lock_all();
  for (auto& each : slots_) {
    auto* const kept = each.cabinets.load(std::memory_order_relaxed);
    if (!kept) continue; // no thread of this number has allocated
    each.refused_lately = 0;
    for (auto& in : *kept) {
      for (auto at = in.stacks.begin(); in.count > 0; ++at) {
        while (at->top) {
          auto& found = pop(each, in, *at);
          found.next = all;
          all = &found;
        }
      }
    }
    each.allowance = 0; // nothing is kept: it is all of
    credit_.fetch_add(each.credit.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
  }
  unlock_all();
  return all;
}

void magazines::lock_all() noexcept {
  for (auto& each : slots_) each.guard.want();
  sync::owned_mutex::stop_owners();
  for (auto& each : slots_) each.guard.lock_from_owner();
}

void magazines::unlock_all() noexcept {
  for (auto& each : slots_) each.guard.unlock_to_owner();
}

thread_counts magazines::glance() const noexcept {
  thread_counts all;
  for (auto const& each : slots_) {
    all.not_live += each.not_live;
    all.allocations += each.allocations;
    all.frees += each.frees;
    all.refused += each.refused;
    // Not of one moment, and in this order never more than is kept.
    auto const credit = each.credit.load(std::memory_order_acquire);
    std::int64_t const allowance = each.allowance;
    all.cached += static_cast<std::size_t>(std::max(credit - allowance, std::int64_t{0}));
    all.allowance += allowance;
  }
  return all;
}

} // namespace gpumem::detail
