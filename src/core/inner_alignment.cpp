// Finds aligned pointers inside larger blocks, and records where the larger blocks begin.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <new>
#include <unordered_map>
module gpumem:inner_alignment.impl;
import :inner_alignment;
import :sync;

namespace gpumem::detail {

void* inner_alignment::align(void* base, std::size_t alignment) noexcept {
  auto const over = reinterpret_cast<std::uintptr_t>(base) % alignment;
  if (over == 0) return base;
  auto* const aligned = static_cast<std::byte*>(base) + (alignment - over);
  try {
    sync::lock const held{mutex_};
    bases_.emplace(aligned, base);
  } catch (std::bad_alloc const&) { return nullptr; }
  return aligned;
}

void* inner_alignment::base_of(void* pointer) noexcept {
  sync::lock const held{mutex_};
  auto const found = bases_.find(pointer);
  if (found == bases_.end()) return pointer;
  auto* const base = found->second;
  bases_.erase(found);
  return base;
}

} // namespace gpumem::detail
