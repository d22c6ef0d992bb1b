// Keeping and granting blocks near a thread.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
module gpumem:magazines.impl;
import :magazines;
import :block;
import :cabinet;
import :credit;
import :recent_blocks;
import :size_class;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

// No block takes more of what large ones may: without that two of four recorded traces used .01 and .03 less of what
// is reserved. With a ninth one of them used .02 more, and two others were a seventh slower on an H200.
inline constexpr std::size_t most_part = 4;
inline constexpr std::size_t always_kept = std::size_t{1} << 20; // where there is so much

} // namespace

magazines::magazines() noexcept {
  for (unsigned i = 0; i < owned_slots; ++i) slots_[i].guard.give_owner();
}

void magazines::furnish(slot& mine) {
  all_furniture_.push_back(std::make_unique<furniture>());
  mine.furniture.store(all_furniture_.back().get(), std::memory_order_release);
}

// The first that comes while it is empty.
bool magazines::claim_empty(cabinet& one, timeline& order) const noexcept {
  if (one.count > 0) return false;
  if (one.unrecorded_frees > 0) pass_on(one, *one.order);
  one.order = &order;
  return true;
}

// Where enough have gathered this free leaves evidence, as if somebody had asked.
void magazines::pass_on(cabinet& one, timeline& order) const noexcept {
  if (order.count_unrecorded(one.unrecorded_frees, one.unrecorded_bytes, most_unrecorded())) order.ask();
  one.unrecorded_frees = 0;
  one.unrecorded_bytes = 0;
}

block& magazines::pop_largest(slot& mine, cabinet& in) noexcept {
  auto& found = in.pop_largest();
  mine.parts[size_class::kind_of(found.bytes)].regain(found.bytes);
  return put_out(mine, found);
}

// As `due`, of a stream that has no cabinet there.
bool magazines::due_alone(timeline& order, std::size_t bytes) const noexcept {
  auto const most = most_unrecorded();
  if (most != SIZE_MAX && order.count_unrecorded(1, bytes, most)) order.ask();
  return order.asked();
}

block* magazines::evict(slot& mine, recent_blocks& recent) noexcept {
  auto* const gone = recent.evict();
  if (!gone) return nullptr;
  mine.parts[size_class::large].regain(gone->bytes);
  return &put_out(mine, *gone);
}

// Where only other streams come any more, what is kept for one goes, a block at a time.
block* magazines::give_way(slot& mine, cabinet& in) noexcept {
  return ++in.strangers > most_strangers ? &pop_largest(mine, in) : nullptr;
}

// There is no credit; `lacking`: for nobody. A thread that has gone over to other streams gives up what it keeps for
// the old ones.
block* magazines::refuse(slot& mine, furniture& all, bool lacking) noexcept {
  ++mine.refused;
  if (lacking) count_lack(mine);
  return mine.refused % refusals_a_look == 0 ? take_stale(mine, all) : nullptr;
}

block* magazines::take_stale(slot& mine, furniture& all) noexcept {
  for (auto& in : all.cabinets) {
    if (in.count == 0 || mine.refused - in.last_put < refusals_till_stale) continue;
    return &pop_largest(mine, in);
  }
  return nullptr;
}

void magazines::allow(bool on, std::array<std::size_t, size_class::kinds> const& most, std::size_t threads,
                      std::size_t most_unrecorded) noexcept {
  for (auto const kind : {size_class::small, size_class::medium}) {
    credits_[kind].set_total(most[kind], most[kind] / threads);
  }
  auto const large = most[size_class::large];
  credits_[size_class::large].set_total(large, large); // these few make way
  largest_.store(std::min(large, std::max(large / most_part, always_kept)), std::memory_order_relaxed);
  most_unrecorded_.store(most_unrecorded, std::memory_order_relaxed);
  allowed_.store(on, std::memory_order_relaxed);
}

block* magazines::sweep() noexcept {
  block* all = nullptr;
  starved_.store(false, std::memory_order_relaxed);
  lock_all();
  for (auto& each : slots_) {
    auto* const kept = each.furniture.load(std::memory_order_relaxed);
    if (!kept) continue; // no thread of this number has allocated
    each.lacked = 0;
    all = take_out(each, *kept, all);
    for (std::size_t kind = 0; kind < size_class::kinds; ++kind) credits_[kind].give_back(each.parts[kind]);
  }
  unlock_all();
  return all;
}

// Everything, linked before others.
block* magazines::take_out(slot& from, furniture& all, block* others) noexcept {
  auto const link = [&](block& found) {
    found.next = others;
    others = &found;
  };
  while (auto* const found = all.recent.pop()) link(put_out(from, *found));
  for (auto& in : all.cabinets) {
    for (auto& stack : in.stacks) {
      while (stack) link(put_out(from, in.pop(stack)));
    }
  }
  return others;
}

void magazines::lock_all() noexcept {
  for (auto& each : slots_) each.guard.want();
  sync::owned_mutex::stop_owners();
  for (auto& each : slots_) each.guard.lock_from_owner();
}

void magazines::unlock_all() noexcept {
  for (auto& each : slots_) each.guard.unlock_to_owner();
}

bool magazines::balanced(thread_counts const& sum) const noexcept {
  bool all = true;
  for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all = all && credits_[kind].balanced(sum.kept[kind]);
  return all;
}

thread_counts magazines::glance() const noexcept {
  thread_counts all;
  for (auto const& each : slots_) {
    all.not_live += each.not_live;
    all.allocations += each.allocations;
    all.frees += each.frees;
    all.refused += each.refused;
    for (std::size_t kind = 0; kind < size_class::kinds; ++kind) all.kept[kind].add(each.parts[kind]);
  }
  return all;
}

} // namespace gpumem::detail
