// aligned_adaptor: checks its options.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
#include <cstdint>
#include <stdexcept>
module gpumem:aligned_adaptor.impl;
import :aligned_adaptor;
import :error;

namespace gpumem::detail {

aligned_options checked_alignment(aligned_options const& options) {
  if (!std::has_single_bit(options.alignment)) throw rule_error{broken_rule::alignment, "aligned_adaptor"};
  if (options.alignment > PTRDIFF_MAX)
    throw std::invalid_argument{"gpumem: aligned_adaptor: the alignment is more than PTRDIFF_MAX"};
  return options;
}

} // namespace gpumem::detail
