// Copies a structure to a caller that may have been compiled with another version of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpumem::c {

/// Copies the fields that both this library and the caller know, except `size`, which stays the caller's. Returns false
/// if there are no such fields.
template <class Struct> bool copy_known(Struct const& source, Struct* target) noexcept {
  constexpr auto first = sizeof(std::size_t);
  if (target->size < first + sizeof(std::uint64_t)) return false;
  std::memcpy(reinterpret_cast<char*>(target) + first, reinterpret_cast<char const*>(&source) + first,
              std::min(target->size, sizeof(Struct)) - first);
  return true;
}

} // namespace gpumem::c
