// Makes and grows the block table.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>
module gpumem:block_table.impl;
import :block_table;
import :block_metadata;

namespace gpumem::detail {

block_table::table::table(std::size_t size)
    : mask{size - 1}, max_used{size < large ? size / 4 : size / 2},
      shift{64u - static_cast<unsigned>(std::countr_zero(size))},
      entries{std::make_unique<std::atomic<entry>[]>(size)} {}

block_table::block_table(block_metadata const& metadata) : metadata_{metadata} {
  tables_.push_back(std::make_unique<table>(smallest));
  current_.store(tables_.back().get(), std::memory_order_relaxed);
}

// Makes a table of twice the size. Keeps the old one, because threads without the lock may still read it. All old
// tables together are no larger than the new one.
void block_table::rebuild() {
  auto const& old = *current_.load(std::memory_order_relaxed);
  tables_.reserve(tables_.size() + 1);
  auto next = std::make_unique<table>(2 * (old.mask + 1));
  used_ = 0;
  for (std::size_t i = 0; i <= old.mask; ++i) {
    auto const one = old.entries[i].load(std::memory_order_relaxed);
    if (one > erased) used_ += insert_in(*next, block_of(one));
  }
  current_.store(next.get(), std::memory_order_release);
  tables_.push_back(std::move(next));
}

} // namespace gpumem::detail
