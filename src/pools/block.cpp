// Where in a block memory lies.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:block.impl;
import :block;

namespace gpumem::detail {

bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept {
  offset = (0 - range.base) & (alignment - 1);
  return offset <= range.bytes && bytes <= range.bytes - offset;
}

} // namespace gpumem::detail
