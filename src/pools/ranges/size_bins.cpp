// Searches of the size bins for aligned blocks, for large sizes, and for the largest block.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
module gpumem:size_bins.impl;
import :size_bins;
import :block;

namespace gpumem::detail {

// Returns the smallest block of a bin that is large enough, the lowest of equal ones; null if there is none.
block* size_bins::find_in(block* head, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept {
  block* best = nullptr;
  for (auto* each = head; each != &end_; each = each->next) {
    std::size_t where = 0;
    if (best && (each->bytes > best->bytes || (each->bytes == best->bytes && each->base > best->base))) continue;
    if (!fits(*each, bytes, alignment, where)) continue;
    best = each;
    offset = where;
  }
  return best;
}

block* size_bins::search(unsigned first, std::size_t bytes, std::size_t alignment, std::size_t& offset) const noexcept {
  // Looks only at the head of each bin: each further block costs a cache line, and is rarely a better fit.
  for (auto bin = first; bin < bin_count; bin = next_used(bin + 1)) {
    if (fits(*heads_[bin], bytes, alignment, offset)) [[likely]]
      return heads_[bin];
  }
  // No head has room for the bytes with this alignment, so this looks at all blocks.
  for (auto bin = first; bin < bin_count; bin = next_used(bin + 1)) {
    if (auto* const found = find_in(heads_[bin], bytes, alignment, offset)) return found;
  }
  return nullptr;
}

std::size_t size_bins::largest() const noexcept {
  if (empty()) return 0;
  auto const word = word_bits - 1 - static_cast<unsigned>(std::countl_zero(used_words_ ^ sentinel));
  auto const bin = word * word_bits + word_bits - 1 - static_cast<unsigned>(std::countl_zero(used_[word]));
  std::size_t largest = 0;
  for (auto const* each = heads_[bin]; each != &end_; each = each->next) largest = std::max(largest, each->bytes);
  return largest;
}

} // namespace gpumem::detail
