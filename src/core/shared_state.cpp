// Counts the live blocks of a shared state, and folds the slots when the last handle is gone.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
#include <thread>
module gpumem:shared_state.impl;
import :shared_state;
import :fork;
import :sync;

namespace gpumem {
namespace {

class slot_lock {
public:
  explicit slot_lock(std::atomic_flag& busy) noexcept : busy_{busy} {
    while (busy_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  ~slot_lock() { busy_.clear(std::memory_order_release); }
  slot_lock(slot_lock const&) = delete;
  slot_lock& operator=(slot_lock const&) = delete;

private:
  std::atomic_flag& busy_;
};

} // namespace

void shared_state::add_live() noexcept {
  auto& mine = own_slot();
  slot_lock const held{mine.busy};
  if (mine.folded) {
    remaining_.fetch_add(1, std::memory_order_relaxed);
  } else {
    ++mine.live;
  }
}

void shared_state::drop_live() noexcept {
  if (detail::forked()) return;
  {
    auto& mine = own_slot();
    slot_lock const held{mine.busy};
    if (!mine.folded) {
      --mine.live;
      return;
    }
  }
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// Does nothing in a forked child: a slot may be locked there for ever, and the state's memory belongs to the parent.
void shared_state::drop_handle() noexcept {
  if (detail::forked()) return;
  if (handles_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  on_last_handle();
  for (auto& slot : slots_) {
    slot_lock const held{slot.busy};
    slot.folded = true;
    remaining_.fetch_add(slot.live,
                         std::memory_order_relaxed); // negative if threads of this slot freed blocks of others
    slot.live = 0;
  }
  if (remaining_.fetch_sub(folding, std::memory_order_acq_rel) == folding) delete this;
}

} // namespace gpumem
