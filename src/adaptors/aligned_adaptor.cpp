// aligned_adaptor: checks the options, and finds aligned pointers in blocks of other libraries.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <unordered_map>
module gpumem:aligned_adaptor.impl;
import :aligned_adaptor;
import :sync;

namespace gpumem::detail {

aligned_options checked_alignment(aligned_options const& options) {
  if (std::has_single_bit(options.alignment) && options.alignment <= PTRDIFF_MAX) return options;
  throw std::invalid_argument{"gpumem: aligned_options: `alignment` must be a power of two, at most PTRDIFF_MAX"};
}

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
