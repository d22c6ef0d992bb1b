// What of the recently freed goes first.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
module gpumem:recent_blocks.impl;
import :recent_blocks;
import :block;

namespace gpumem::detail {

// By turns: the oldest, but for what was put where one had been asked for.
block* recent_blocks::pop() noexcept {
  if (used_ == 0) return nullptr;
  auto const from_next = used_ >> next_ << next_;
  auto const i = static_cast<unsigned>(std::countr_zero(from_next ? from_next : used_));
  next_ = (i + 1) % most;
  clear(i);
  return cells_[i];
}

} // namespace gpumem::detail
