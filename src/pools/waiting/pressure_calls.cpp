// Runs pressure callbacks, and decides which one is called next.
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
module gpumem:pressure_calls.impl;
import :pressure_calls;
import :executor;
import :sync;

namespace gpumem::detail {

namespace {

// The pressure_call whose function this thread runs now; null if none.
thread_local pressure_call const* running = nullptr;

} // namespace

void pressure_call::post() noexcept {
  bool const needs_flush = executor_.needs_flush();
  auto& where = executor_;
  where.post(*this); // another thread may run and destroy this object immediately
  if (needs_flush) where.flush();
}

void pressure_call::resume() noexcept {
  auto const self = shared_from_this(); // end_run() may drop the last other reference before the function returns
  auto* const outer = std::exchange(running, this);
  std::optional<std::size_t> freed = 0;
  if (auto const wanted = pool_.begin_pressure(*this)) {
    try {
      freed = free_some_(wanted, *this);
    } catch (...) {
      // A function that throws counts as one that has freed nothing.
    }
  }
  running = outer;
  if (freed) end_run(*freed);
}

void pressure_call::end_run(std::size_t freed_bytes) noexcept {
  if (!ended_) pool_.end_pressure(*this, freed_bytes);
  std::shared_ptr<pressure_call> self; // destroyed after the lock, because it may be the last reference
  sync::lock const lock{mutex_};
  self = std::exchange(self_, nullptr);
  over_.notify_all();
}

void pressure_call::end() noexcept {
  sync::lock const lock{mutex_};
  if (running == this) ended_ = true;
  if (!self_ || ended_) return;
  if (executor_.try_cancel(*this)) {
    self_ = nullptr;
    return;
  }
  while (self_) over_.wait(mutex_);
}

void pressure_list::remove(pressure_call& item) noexcept { std::erase(calls_, &item); }

bool pressure_list::pending() const noexcept {
  return std::ranges::any_of(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return each->busy_ || is_due(*each);
  });
}

bool pressure_list::due() const noexcept {
  return std::ranges::any_of(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return is_due(*each);
  });
}

pressure_call* pressure_list::begin_next() noexcept {
  auto const found = std::ranges::find_if(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return is_due(*each);
  });
  if (found == calls_.end()) return nullptr;
  auto& next = **found;
  next.busy_ = true;
  sync::lock const lock{next.mutex_};
  next.self_ = next.shared_from_this();
  return &next;
}

// If no bytes are wanted, the caller does not run the function, and it stays due. It may be needed soon: a waiting
// request that now tries again may still be refused.
void pressure_list::on_begin(pressure_call& item, std::size_t bytes, std::uint64_t change_count) noexcept {
  if (bytes == 0) return;
  item.freed_some_ = false;
  item.parks_ = parks_;
  item.change_count_ = change_count;
}

void pressure_list::on_end(pressure_call& item, std::size_t freed_bytes, std::uint64_t change_count) noexcept {
  item.busy_ = false;
  if (freed_bytes > 0) item.freed_some_ = change_count != item.change_count_;
}

} // namespace gpumem::detail
