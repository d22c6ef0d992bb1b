// The stamp of a block: words of 16 bytes, each different from all words of all other blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace heaps {

__device__ inline uint4 stamp_of(std::uint64_t owner, unsigned word) {
  auto const low = static_cast<unsigned>(owner), high = static_cast<unsigned>(owner >> 32);
  return {low, word, ~low, high ^ 0x5a5a5a5au};
}

__device__ inline bool same(uint4 one, uint4 other) {
  return one.x == other.x && one.y == other.y && one.z == other.z && one.w == other.w;
}

} // namespace heaps
