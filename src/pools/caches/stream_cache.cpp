// Finds the largest block of a stream cache.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <ranges>
module gpumem:stream_cache.impl;
import :stream_cache;
import :block;

namespace gpumem::detail {

block& stream_cache::pop_largest() noexcept {
  auto const downwards = lists | std::views::reverse;
  return pop(*std::ranges::find_if(downwards, [](block* newest) { return newest != nullptr; }));
}

} // namespace gpumem::detail
