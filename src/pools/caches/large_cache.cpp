// large_cache: the order in which blocks leave it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
module gpumem:large_cache.impl;
import :large_cache;
import :block;

namespace gpumem::detail {

// Visits the cells in turn. So the oldest block goes first, unless it was inserted into a cell that a request had
// emptied.
block* large_cache::pop_any() noexcept {
  if (used_ == 0) return nullptr;
  auto const from_next = used_ >> next_ << next_;
  auto const i = static_cast<unsigned>(std::countr_zero(from_next ? from_next : used_));
  next_ = (i + 1) % capacity;
  clear(i);
  return cells_[i];
}

} // namespace gpumem::detail
