// fallback_adaptor: the parts that do not depend on the types of its resources.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <optional>
#include <stdexcept>
module gpumem:fallback_adaptor.impl;
import :fallback_adaptor;
import :device;
import :services;

namespace gpumem::detail {

std::optional<device> common_device(std::optional<device> first, std::optional<device> second) {
  if (first && second && *first != *second)
    throw std::invalid_argument{"gpumem: the two resources of a fallback_adaptor belong to different devices"};
  return first ? first : second;
}

memory_traits common_traits(memory_traits first, memory_traits second) {
  if (!has_access_of(second, first))
    throw std::invalid_argument{"gpumem: the host or devices can access the memory of the first resource of a "
                                "fallback_adaptor, but not that of the second"};
  first.stream_ordered |= second.stream_ordered;
  return first;
}

statistics sum_of(statistics first, statistics const& second) noexcept {
  bool const limited = first.limit > 0 && second.limit > 0;
  bool const bounded = first.largest_block > 0 && second.largest_block > 0;
  add_statistics(first, second);
  first.limit = limited ? first.limit + second.limit : 0;
  first.largest_block = bounded ? std::max(first.largest_block, second.largest_block) : 0;
  first.peak_live = first.peak_reserved = 0; // unknown: the two peaks may lie at different times
  return first;
}

void refuse_use_of_fallback() {
  throw std::invalid_argument{"gpumem: the second resource of this fallback_adaptor records no uses"};
}

} // namespace gpumem::detail
