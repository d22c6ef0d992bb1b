// Makes and grows the block table, and gives memory to block records.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>
module gpumem:block_table.impl;
import :block_table;
import :block;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;
inline constexpr std::size_t backed_at_once = huge_page / sizeof(block);
inline constexpr std::size_t grown_at_once = 256;

// Returns the bytes of addresses for `count` records, including the bytes lost by aligning the first one.
constexpr std::size_t bytes_of(std::size_t count) noexcept { return count * sizeof(block) + huge_page; }

} // namespace

static_assert(std::is_trivially_destructible_v<block>);

block_metadata::~block_metadata() {
  if (reserved_) munmap(reserved_, bytes_of(end_));
}

// Reserves addresses for as many records as there are block numbers. If the system refuses, tries a 64th of them, and
// then half of the last count again and again. One half would be too much to begin with: a process whose addresses do
// not suffice for all records needs some of them for other purposes.
void block_metadata::reserve_addresses() {
  constexpr auto all_numbers = std::size_t{1} << number_bits, few = all_numbers / 64;
  for (auto count = all_numbers; count >= backed_at_once; count = std::min(count / 2, few)) {
    auto* const begin = mmap(nullptr, bytes_of(count), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) continue;
    auto const address = reinterpret_cast<std::uintptr_t>(begin);
    reserved_ = begin;
    base_ = reinterpret_cast<block*>((address + huge_page - 1) & ~(huge_page - 1));
    end_ = count;
    return;
  }
  throw std::bad_alloc{};
}

// Gives memory to the next 2 MiB of records. Records are read in random order, so huge pages save walks of the page
// tables. The first 2 MiB use no huge page, so that small pools use little memory.
void block_metadata::add_memory() {
  if (!base_) reserve_addresses();
  auto* const begin = base_ + backed_;
  if (backed_ == end_ || mprotect(begin, huge_page, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc{};
  madvise(begin, huge_page, backed_ > 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  backed_ += backed_at_once;
}

void block_metadata::grow() {
  if (next_ >= backed_) add_memory();
  auto const end = next_ / grown_at_once * grown_at_once + grown_at_once;
  std::uninitialized_value_construct(base_ + next_, base_ + end);
  for (auto number = end; number > next_; --number)
    deallocate(base_[number - 1]); // the record that is deallocated last is allocated first
  next_ = end;
}

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
  used_entries_ = 0;
  for (std::size_t i = 0; i <= old.mask; ++i) {
    auto const one = old.entries[i].load(std::memory_order_relaxed);
    if (one > erased) used_entries_ += insert_in(*next, block_of(one));
  }
  current_.store(next.get(), std::memory_order_release);
  tables_.push_back(std::move(next));
}

} // namespace gpumem::detail
