// Counts the live blocks of a shared state, and folds the slots when the last handle is gone.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
#include <span>
module gpumem:shared_state.impl;
import :shared_state;
import :fork;
import :sync;

namespace gpumem {

shared_state::shared_state(bool long_lived) noexcept : long_lived_{long_lived} {
  if (!long_lived) return;
  detail::set_in_use();
  for (unsigned i = 0; i < sync::max_biased_threads; ++i) slots_[i].mutex.enable_bias();
}

void shared_state::drop_folded() noexcept {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// Does nothing in a forked child: a slot may be locked there for ever, and the state's memory belongs to the parent.
void shared_state::drop_handle() noexcept {
  if (detail::forked()) return;
  if (handles_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  on_last_handle();
  auto const used = std::span{slots_}.subspan(long_lived_ ? 0 : sync::max_biased_threads);
  for (auto& slot : used) slot.mutex.request_revoke();
  if (long_lived_) sync::biased_mutex::fence_owner_threads();
  for (auto& slot : used) {
    slot.mutex.lock_revoked();
    slot.folded = true;
    remaining_.fetch_add(slot.live,
                         std::memory_order_relaxed); // negative if threads of this slot freed blocks of others
    slot.live = 0;
    slot.mutex.unlock_revoked();
  }
  if (remaining_.fetch_sub(folding, std::memory_order_acq_rel) == folding) delete this;
}

} // namespace gpumem
