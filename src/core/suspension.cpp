// Suspends and resumes coroutines.
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <new>
module gpumem:suspension.impl;
import :suspension;
import :driver;
import :executor;
import :process;
import :sync;

namespace gpumem::detail {
namespace {

struct gate {
  sync::mutex mutex;
  sync::condition posted;
};

// The gates: each guards the posts of some suspensions. Never destroyed. Suspensions get gates in turn, not by their
// addresses, so that a test can replay a schedule.
class gate_row {
public:
  unsigned next() noexcept { return next_.fetch_add(1, std::memory_order_relaxed) % size; }
  gate& at(unsigned index) noexcept { return gates_[index]; }

private:
  static constexpr unsigned size = 64;
  std::array<gate, size> gates_;
  std::atomic<unsigned> next_{0};
};

// Takes no host memory, since noexcept functions call it.
gate_row& gates() noexcept {
  alignas(gate_row) static std::byte place[sizeof(gate_row)];
  static auto* const row = ::new (place) gate_row;
  return *row;
}

} // namespace

void suspension::prepare() {
  throw_if_child();
  set_in_use();
  if (!executor_) executor_ = &default_executor();
  gate_ = gates().next();
}

void suspension::post() noexcept {
  auto* const where = executor_;
  bool const needs_flush = where->needs_flush(); // asked first: after the post the executor may be destroyed
  {
    auto& mine = gates().at(gate_);
    sync::lock const lock{mine.mutex};
    posted_ = true;
    where->post(*this);
    mine.posted.notify_all();
  }
  if (needs_flush) where->flush();
}

// The thread that posts the operation holds the gate's lock. So once this function has the lock, the post is over.
void suspension::await_post() noexcept {
  sync::lock const lock{gates().at(gate_).mutex};
  posted_ = false;
}

void suspension::take_back() noexcept {
  {
    auto& mine = gates().at(gate_);
    sync::lock lock{mine.mutex};
    while (!posted_) mine.posted.wait(mine.mutex);
  }
  executor_->try_cancel(*this);
}

} // namespace gpumem::detail
