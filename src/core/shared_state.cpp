// Counts the live blocks of a pool or adaptor in slots (a counter for one thread or a few). Adds up all slots when the
// last handle is gone.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
module gpumem:shared_state.impl;
import :shared_state;
import :process;
import :sync;

namespace gpumem {

shared_state::shared_state(bool long_lived) noexcept : long_lived_{long_lived} {
  if (!long_lived) return;
  detail::set_in_use();
  for (auto& slot : owned_) slot.mutex.enable_bias();
}

void shared_state::drop_folded() noexcept {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// The count of a slot is negative if its thread freed blocks that other threads had allocated.
void shared_state::fold(slot& slot) noexcept {
  slot.folded = true;
  remaining_.fetch_add(slot.live, std::memory_order_relaxed);
}

// Does nothing in a forked child: a slot may be locked there for ever, and the memory belongs to the parent.
void shared_state::drop_handle() noexcept {
  if (detail::forked()) return;
  if (handles_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  on_last_handle();
  if (long_lived_) {
    for (auto& slot : owned_) slot.mutex.request_revoke();
    sync::biased_mutex::fence_owner_threads();
    for (auto& slot : owned_) {
      slot.mutex.lock_revoked();
      fold(slot);
      slot.mutex.unlock_revoked();
    }
  }
  for (auto& slot : shared_) {
    flag_lock const held{slot.busy};
    fold(slot);
  }
  if (remaining_.fetch_sub(folding, std::memory_order_acq_rel) == folding) delete this;
}

} // namespace gpumem
