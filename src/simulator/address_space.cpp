// address_space: reserves addresses, allocates ranges first-fit, and drops the pages of freed ranges.
// SPDX-License-Identifier: Apache-2.0
#include "address_space.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace simulated {

namespace {

constexpr std::uint64_t page = 4096;

void* as_pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

} // namespace

address_space::~address_space() {
  if (bytes_ != 0) ::munmap(as_pointer(base_), bytes_);
}

void address_space::reserve(std::size_t bytes) {
  if (bytes_ != 0) ::munmap(as_pointer(base_), bytes_);
  bytes_ = 0;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  ::madvise(at, bytes, MADV_DONTDUMP);
  base_ = reinterpret_cast<std::uint64_t>(at);
  bytes_ = bytes;
  touched_end_ = base_;
  free_ = {{base_, bytes_}};
}

std::uint64_t address_space::take(std::size_t bytes, std::size_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [start, length] = *range;
    const std::uint64_t address = (start + alignment - 1) & ~(std::uint64_t{alignment} - 1);
    if (address - start > length || length - (address - start) < bytes) continue;
    free_.erase(range);
    if (address > start) free_.emplace(start, address - start);
    if (address + bytes < start + length) free_.emplace(address + bytes, start + length - address - bytes);
    touched_end_ = std::max(touched_end_, address + bytes);
    return address;
  }
  return 0;
}

void address_space::give(std::uint64_t address, std::size_t bytes) {
  drop_pages(address, bytes);
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(address, bytes);
}

void address_space::clear() {
  if (bytes_ == 0) return;
  drop_pages(base_, touched_end_ - base_);
  touched_end_ = base_;
  free_ = {{base_, bytes_}};
}

/// Zeroes the range. Whole pages go back to the system. The first and last page may also hold bytes of other ranges; of
/// these pages only the bytes of this range are cleared.
void address_space::drop_pages(std::uint64_t address, std::size_t bytes) const noexcept {
  const std::uint64_t end = address + bytes;
  const std::uint64_t first = std::min(end, (address + page - 1) & ~(page - 1));
  const std::uint64_t last = std::max(first, end & ~(page - 1));
  std::memset(as_pointer(address), 0, first - address);
  if (first < last) ::madvise(as_pointer(first), last - first, MADV_DONTNEED);
  std::memset(as_pointer(last), 0, end - last);
}

} // namespace simulated
