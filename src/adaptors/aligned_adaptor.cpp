// aligned_adaptor: checks the options.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
#include <cstdint>
#include <stdexcept>
module gpumem:aligned_adaptor.impl;
import :aligned_adaptor;

namespace gpumem::detail {

aligned_options checked_alignment(aligned_options const& options) {
  if (std::has_single_bit(options.alignment) && options.alignment <= PTRDIFF_MAX) return options;
  throw std::invalid_argument{"gpumem: aligned_options: `alignment` must be a power of two, at most PTRDIFF_MAX"};
}

} // namespace gpumem::detail
