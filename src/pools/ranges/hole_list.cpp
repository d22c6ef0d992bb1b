// Adds, removes and finds the holes of a shard.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
module gpumem:hole_list.impl;
import :hole_list;
import :block;

namespace gpumem::detail {

void hole_list::insert(block& made) noexcept {
  made.set_state(block_state::hole);
  made.older = nullptr;
  made.newer = first_;
  if (first_) first_->older = &made;
  first_ = &made;
}

void hole_list::remove(block& hole) noexcept {
  (hole.older ? hole.older->newer : first_) = hole.newer;
  if (hole.newer) hole.newer->older = hole.older;
}

block& hole_list::at(std::uintptr_t address) const noexcept {
  auto* each = first_;
  while (address - each->base >= each->bytes) each = each->newer;
  return *each;
}

} // namespace gpumem::detail
