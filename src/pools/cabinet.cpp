// Taking out what is largest.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <ranges>
module gpumem:cabinet.impl;
import :cabinet;
import :block;

namespace gpumem::detail {

block& cabinet::pop_largest() noexcept {
  auto const downwards = stacks | std::views::reverse;
  return pop(*std::ranges::find_if(downwards, [](block* newest) { return newest != nullptr; }));
}

} // namespace gpumem::detail
