// Calls of functions that free memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pressure.impl;
import :pressure;
import :executor;
import :sync;

namespace gpumem::detail {
namespace {

// The call whose function this thread runs.
thread_local pressure_call const* running = nullptr;

} // namespace

void pressure_call::post() noexcept {
  bool const needs_flush = where_.needs_flush();
  auto& where = where_;
  where.post(*this); // it may run, and be gone, at once
  if (needs_flush) where.flush();
}

void pressure_call::resume() noexcept {
  auto const self = shared_from_this(); // the function may end, and be gone, before it returns
  auto* const outer = std::exchange(running, this);
  std::optional<std::size_t> freed = 0;
  if (auto const wanted = pool_.begin_pressure(*this)) {
    try {
      freed = free_some_(wanted, *this);
    } catch (...) {
      // It has freed nothing that it tells of.
    }
  }
  running = outer;
  if (freed) finish(*freed);
}

void pressure_call::finish(std::size_t freed) noexcept {
  if (!ended_) pool_.end_pressure(*this, freed);
  sync::lock held{mutex_};
  auto const self = std::exchange(self_, nullptr);
  over_.notify_all();
  held.unlock();
}

void pressure_call::end() noexcept {
  sync::lock held{mutex_};
  if (running == this) ended_ = true;
  if (!self_ || ended_) return;
  if (where_.try_cancel(*this)) {
    self_ = nullptr;
    return;
  }
  while (self_) over_.wait(held);
}

bool pressure_list::pending() const noexcept {
  return std::ranges::any_of(calls_, [this](auto const* each) { return each->busy_ || is_due(*each); });
}

bool pressure_list::due() const noexcept {
  return std::ranges::any_of(calls_, [this](auto const* each) { return is_due(*each); });
}

pressure_call* pressure_list::begin_next() noexcept {
  auto const found = std::ranges::find_if(calls_, [this](auto const* each) { return is_due(*each); });
  if (found == calls_.end()) return nullptr;
  auto& next = **found;
  next.busy_ = true;
  sync::lock const held{next.mutex_};
  next.self_ = next.shared_from_this();
  return &next;
}

// Without need the function is not called, and stays due: a request in its turn may be refused.
void pressure_list::on_begin(pressure_call& item, std::size_t wanted, std::uint64_t change_count) noexcept {
  if (wanted == 0) return;
  item.freed_some_ = false;
  item.parks_ = parks_;
  item.change_count_ = change_count;
}

void pressure_list::on_end(pressure_call& item, std::size_t freed, std::uint64_t change_count) noexcept {
  item.busy_ = false;
  if (freed > 0) item.freed_some_ = change_count != item.change_count_;
}

} // namespace gpumem::detail
