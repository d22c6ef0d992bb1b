// Runs of pressure callbacks.
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
module gpumem:pressure_call.impl;
import :pressure_call;
import :executor;
import :sync;

namespace gpumem::detail {

namespace {

// The pressure_call whose function this thread runs now; null if none.
thread_local pressure_call const* running = nullptr;

} // namespace

void pressure_call::post() noexcept {
  bool const needs_flush = where_.needs_flush();
  auto& where = where_;
  where.post(*this); // another thread may run and destroy this object immediately
  if (needs_flush) where.flush();
}

void pressure_call::resume() noexcept {
  auto const self = shared_from_this(); // finish() may drop the last other reference before the function returns
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
  if (freed) finish(*freed);
}

void pressure_call::finish(std::size_t freed) noexcept {
  if (!ended_) pool_.end_pressure(*this, freed);
  std::shared_ptr<pressure_call> self; // destroyed after the lock, because it may be the last reference
  sync::lock const held{mutex_};
  self = std::exchange(self_, nullptr);
  over_.notify_all();
}

void pressure_call::end() noexcept {
  sync::lock const held{mutex_};
  if (running == this) ended_ = true;
  if (!self_ || ended_) return;
  if (where_.try_cancel(*this)) {
    self_ = nullptr;
    return;
  }
  while (self_) over_.wait(mutex_);
}

} // namespace gpumem::detail
