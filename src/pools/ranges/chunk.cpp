// Searches the blocks of a chunk.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module gpumem:chunk.impl;
import :chunk;
import :block;

namespace gpumem::detail {

block* chunk::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto* each = first; each; each = each->upper) {
    if (address < each->end()) return each;
  }
  return nullptr;
}

std::size_t chunk::largest_run() const noexcept {
  std::size_t largest = 0, run = 0;
  visit([&](block const& each) {
    run = each.is_free() ? run + each.bytes : 0;
    largest = std::max(largest, run);
  });
  return largest;
}

} // namespace gpumem::detail
