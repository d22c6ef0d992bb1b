// Takes all blocks off the quick lists, so that they can coalesce.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:quick_lists.impl;
import :quick_lists;
import :block;

namespace gpumem::detail {

block* quick_lists::pop_all(block* before) noexcept {
  if (empty()) return before;
  for (auto*& head : heads_) {
    while (auto* const listed = head) {
      pop(*listed);
      listed->next = before;
      before = listed;
    }
  }
  return before;
}

} // namespace gpumem::detail
