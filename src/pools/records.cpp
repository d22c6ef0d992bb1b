// Slabs of block records.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <ranges>
#include <utility>
#include <vector>
module gpumem:records.impl;
import :records;
import :block;

namespace gpumem::detail {

void record_slab::grow() {
  slabs_.reserve(slabs_.size() + 1);
  auto made = std::make_unique<slab>();
  if (reinterpret_cast<std::uintptr_t>(made->end()) > records_end) throw std::bad_alloc{};
  slabs_.push_back(std::move(made));
  // The lowest first.
  for (auto& each : *slabs_.back() | std::views::reverse) give(each);
}

} // namespace gpumem::detail
