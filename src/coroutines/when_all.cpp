// The count of children that when_all awaits.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <coroutine>
#include <exception>
#include <utility>
module gpumem:when_all.impl;
import :when_all;

namespace gpumem::detail {

// Only the first child that fails writes the error. It is read after all children have ended, so no lock is needed.
void all_of::child_failed(std::exception_ptr error) noexcept {
  if (!has_failed_.exchange(true, std::memory_order_relaxed)) error_ = std::move(error);
}

std::coroutine_handle<> all_of::child_finished() noexcept {
  auto const continuation = continuation_; // read first: *this may be destroyed once the last child has counted down
  if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) return continuation;
  return std::noop_coroutine();
}

} // namespace gpumem::detail
