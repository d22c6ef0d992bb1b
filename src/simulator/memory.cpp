// Reserves addresses, and allocates device, pinned, managed and registered memory in them.
// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

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

std::uint64_t address_space::allocate(std::size_t bytes, std::size_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    auto const [start, length] = *range;
    std::uint64_t const address = (start + alignment - 1) & ~(std::uint64_t{alignment} - 1);
    if (address - start > length || length - (address - start) < bytes) continue;
    free_.erase(range);
    if (address > start) free_.emplace(start, address - start);
    if (address + bytes < start + length) free_.emplace(address + bytes, start + length - address - bytes);
    touched_end_ = std::max(touched_end_, address + bytes);
    return address;
  }
  return 0;
}

void address_space::free(std::uint64_t address, std::size_t bytes) {
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
  std::uint64_t const end = address + bytes;
  std::uint64_t const first = std::min(end, (address + page - 1) & ~(page - 1));
  std::uint64_t const last = std::max(first, end & ~(page - 1));
  std::memset(as_pointer(address), 0, first - address);
  if (first < last) ::madvise(as_pointer(first), last - first, MADV_DONTNEED);
  std::memset(as_pointer(last), 0, end - last);
}

namespace {

constexpr std::size_t small_granule = 512;
constexpr std::size_t large_granule = std::size_t{2} << 20;
constexpr std::size_t host_space = std::size_t{256} << 30;
constexpr std::size_t spaces_a_device = 4; // address space per device, as a multiple of the capacity

std::size_t granted_for(std::size_t bytes) {
  std::size_t const granule = bytes < large_granule ? small_granule : large_granule;
  return (bytes + granule - 1) / granule * granule;
}

} // namespace

void memory::device_space::widen(std::size_t bytes) {
  if (!spaces.empty() && spaces.back().size() >= bytes) return;
  if (used == 0) spaces.clear();
  spaces.emplace_back();
  try {
    spaces.back().reserve(bytes);
  } catch (std::bad_alloc const&) {
    spaces.pop_back();
    throw;
  }
}

std::uint64_t memory::device_space::allocate(std::size_t bytes, std::size_t alignment) {
  for (address_space& space : spaces)
    if (std::uint64_t const address = space.allocate(bytes, alignment); address != 0) return address;
  return 0;
}

void memory::device_space::free(std::uint64_t address, std::size_t bytes) {
  for (address_space& space : spaces)
    if (space.contains(address)) space.free(address, bytes);
}

bool memory::device_space::contains(std::uint64_t address) const noexcept {
  return std::any_of(spaces.begin(), spaces.end(), [&](auto const& space) { return space.contains(address); });
}

void memory::configure(int devices, std::size_t capacity) {
  while (std::cmp_less(spaces_.size(), devices)) spaces_.push_back(std::make_unique<device_space>());
  for (auto const& space : spaces_) space->widen(granted_for(std::max(capacity, large_granule)) * spaces_a_device);
  capacity_ = capacity;
  if (host_.size() == 0) host_.reserve(host_space);
}

void memory::clear() {
  live_.clear();
  for (auto const& each : spaces_) {
    for (address_space& space : each->spaces) space.clear();
    each->used = 0;
  }
  host_.clear();
  next_buffer_id_ = 1;
}

allocation const* memory::allocate(memory_kind kind, int device, context* home, std::size_t bytes,
                                   std::uint64_t number) {
  bool const on_device = kind == memory_kind::device;
  device_space& space = *spaces_[device];
  if (bytes > (on_device ? capacity_ : host_.size())) return nullptr;
  std::size_t const granted = granted_for(bytes);
  if (on_device && space.used + granted > capacity_) return nullptr;
  std::size_t const alignment = granted >= large_granule ? large_granule : small_granule;
  std::uint64_t const address = on_device ? space.allocate(granted, alignment) : host_.allocate(granted, alignment);
  if (address == 0) return nullptr;
  if (on_device) space.used += granted;
  return &live_.emplace(address, allocation{address, bytes, granted, kind, device, home, number, next_buffer_id_++})
              .first->second;
}

allocation const* memory::register_host(void* pointer, std::size_t bytes, int device, context* home,
                                        std::uint64_t number) {
  auto const address = reinterpret_cast<std::uint64_t>(pointer);
  return &live_
              .emplace(address, allocation{address, bytes, bytes, memory_kind::registered, device, home, number,
                                           next_buffer_id_++})
              .first->second;
}

void memory::free(std::uint64_t address) {
  auto const found = live_.find(address);
  allocation const& old = found->second;
  if (old.kind == memory_kind::device) {
    spaces_[old.device]->free(old.address, old.granted);
    spaces_[old.device]->used -= old.granted;
  } else if (old.kind != memory_kind::registered) {
    host_.free(old.address, old.granted);
  }
  live_.erase(found);
}

bool memory::charge(int device, std::size_t bytes) {
  device_space& space = *spaces_[device];
  if (space.used + bytes > capacity_) return false;
  space.used += bytes;
  return true;
}

allocation const* memory::find(std::uint64_t address) const {
  auto above = live_.upper_bound(address);
  if (above == live_.begin()) return nullptr;
  allocation const& candidate = std::prev(above)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

bool memory::owns(std::uint64_t address) const noexcept {
  if (host_.contains(address)) return true;
  return std::any_of(spaces_.begin(), spaces_.end(), [&](auto const& each) { return each->contains(address); });
}

std::vector<std::uint64_t> memory::of(context const* home) const {
  std::vector<std::uint64_t> addresses;
  for (auto const& [address, block_here] : live_)
    if (block_here.home == home) addresses.push_back(address);
  return addresses;
}

} // namespace simulated
