// Allocates aligned blocks inside larger blocks of an upstream that aligns to 256 bytes only.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <new>
#include <unordered_map>
module gpumem:aligned_services.impl;
import :aligned_services;
import :cuda;
import :error;
import :services;
import :stream;
import :sync;

namespace gpumem::detail {

void* inner_alignment::align(void* base, std::size_t alignment) noexcept {
  auto const over = reinterpret_cast<std::uintptr_t>(base) % alignment;
  if (over == 0) return base;
  auto* const aligned = static_cast<std::byte*>(base) + (alignment - over);
  try {
    sync::lock const lock{mutex_};
    bases_.emplace(aligned, base);
  } catch (std::bad_alloc const&) { return nullptr; }
  return aligned;
}

void* inner_alignment::base_of(void* pointer) noexcept {
  sync::lock const lock{mutex_};
  auto const found = bases_.find(pointer);
  if (found == bases_.end()) return pointer;
  auto* const base = found->second;
  bases_.erase(found);
  return base;
}

expected<void*, failure> aligned_services::allocate_inside(stream_key const& key, std::size_t bytes,
                                                           std::size_t alignment) noexcept {
  auto const padded = inner_alignment::padded(bytes, alignment);
  if (padded > PTRDIFF_MAX) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  auto const given = services_.table->try_allocate_keyed(services_.state, &key, padded, inner_alignment::natural);
  if (!given) return unexpected<failure>{failure{given.error().reason, given.error().code, bytes}};
  if (auto* const aligned = inside_.align(*given, alignment)) return aligned;
  services_.table->deallocate_keyed(services_.state, &key, *given, padded, inner_alignment::natural);
  return unexpected<failure>{no_host_memory(bytes)};
}

} // namespace gpumem::detail
