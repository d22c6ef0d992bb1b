// Small blocks that are to join their neighbours.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:spans.impl;
import :spans;
import :block;

namespace gpumem::detail {

block* spans::take_all(block* before) noexcept {
  if (empty()) return before;
  for (auto*& last : last_) {
    while (auto* const spare = last) {
      take(*spare);
      spare->next = before;
      before = spare;
    }
  }
  return before;
}

} // namespace gpumem::detail
