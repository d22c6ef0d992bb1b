// Holders: their ages and parents, and the resources in which they hold memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>
module gpumem:holder.impl;
import :holder;

namespace gpumem {

namespace {
constinit std::atomic<std::uint64_t> last_age{0};
constinit std::atomic<int> marked{0};
} // namespace

std::uint64_t holder::next_age() noexcept { return last_age.fetch_add(1, std::memory_order_relaxed) + 1; }

// A part of old work is old, too: otherwise it would give way to work that is younger than the whole.
void holder::set_parent(holder& unit) noexcept {
  if (parent_) return;
  parent_ = &unit;
  age_ = unit.age_;
}

bool holder::is_part_of(holder const& work) const noexcept {
  auto const* at = this;
  while (at && at != &work) at = at->parent_;
  return at != nullptr;
}

holder const& holder::whole() const noexcept {
  auto const* at = this;
  while (at->parent_) at = at->parent_;
  return *at;
}

holder* holder::rolls_back_with() noexcept {
  auto* at = this;
  while (at && !at->may_roll_back()) at = at->parent_;
  return at;
}

holder* holder::gives_way_with() noexcept {
  auto* at = this;
  while (at && !at->gives_way()) at = at->parent_;
  return at;
}

// The largest request counts: the work may free the memory of one request before it makes another.
void holder::preempt(std::size_t bytes) noexcept {
  auto const need = std::max(need_.load(std::memory_order_relaxed), held() + bytes);
  need_.store(need, std::memory_order_relaxed);
}

void holder::mark() noexcept {
  if (marks_.fetch_add(1, std::memory_order_relaxed) == 0) marked.fetch_add(1, std::memory_order_relaxed);
}

void holder::unmark() noexcept {
  if (marks_.fetch_sub(1, std::memory_order_relaxed) == 1) marked.fetch_sub(1, std::memory_order_relaxed);
}

bool holder::any_marked() noexcept { return marked.load(std::memory_order_relaxed) > 0; }

void holder::add_place(detail::waiting_place& new_place) noexcept {
  auto const same = [&](place const& each) { return each.at == &new_place && each.bytes == counted_; };
  if (std::ranges::any_of(places_, same)) return;
  try {
    places_.push_back({&new_place, counted_});
  } catch (std::bad_alloc const&) { incomplete_ = true; }
}

// Returns null for a router that the event has reached before, on another way. Its branches have their counts then.
holder::counter* holder::add_branches(void const* router, std::size_t count) noexcept {
  if (std::ranges::any_of(branches_, [&](branches const& each) { return each.router == router; })) return nullptr;
  try {
    branches_.push_back({router, count, std::make_unique<counter[]>(count)});
    return branches_.back().bytes.get();
  } catch (std::bad_alloc const&) { incomplete_ = true; }
  return nullptr;
}

void holder::count_at(void const* router, std::size_t branch, std::ptrdiff_t change) noexcept {
  for (auto const& each : branches_) {
    if (each.router != router) continue;
    if (branch < each.count) each.bytes[branch].fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
    return;
  }
}

} // namespace gpumem
