// virtual_memory: reserves, maps and unmaps addresses. At unmapped addresses lies scratch memory, so that a wrong
// access does not crash the process and can be reported.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace simulated {

namespace {

constexpr std::size_t space_size = std::size_t{1} << 40;

void place(std::uint64_t address, std::size_t bytes, int flags, int file, std::uint64_t offset) {
  void* const wanted = reinterpret_cast<void*>(address);
  void* const at = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_NORESERVE, file,
                          static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw std::bad_alloc();
  ::madvise(at, bytes, MADV_DONTDUMP);
}

void place_scratch(std::uint64_t address, std::size_t bytes) {
  place(address, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

bool has_reserved(address_space& space, std::size_t bytes) try {
  space.reserve(bytes);
  return true;
} catch (const std::bad_alloc&) { return false; }

} // namespace

std::uint64_t virtual_memory::reserve(std::size_t bytes, std::size_t alignment) {
  if (bytes > (std::size_t{1} << 47) || (most_ != 0 && bytes > most_ - std::min(most_, reserved_))) return 0;
  std::uint64_t address = 0;
  for (address_space& space : spaces_)
    if ((address = space.take(bytes, alignment)) != 0) break;
  if (address == 0) {
    spaces_.emplace_back();
    if (!has_reserved(spaces_.back(), std::max(space_size, bytes + alignment)) &&
        !has_reserved(spaces_.back(), bytes + alignment)) {
      spaces_.pop_back();
      return 0;
    }
    address = spaces_.back().take(bytes, alignment);
  }
  reservations_.emplace(address, bytes);
  reserved_ += bytes;
  return address;
}

bool virtual_memory::release(std::uint64_t address, std::size_t bytes) {
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return false;
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes) return false;
  for (address_space& space : spaces_)
    if (space.contains(address)) space.give(address, bytes);
  reservations_.erase(found);
  reserved_ -= bytes;
  return true;
}

bool virtual_memory::map(std::uint64_t address, std::size_t bytes, const std::shared_ptr<physical>& memory) {
  const auto [start, length] = reservation_of(address);
  if (length == 0 || bytes > length - (address - start)) return false;
  const auto above = mappings_.lower_bound(address);
  if (above != mappings_.end() && above->first < address + bytes) return false;
  if (find(address) != nullptr) return false;
  const auto made = mappings_.emplace_hint(above, address, mapping{address, bytes, memory, {}, {}});
  try {
    place(address, bytes, MAP_SHARED, memory->place.file, memory->place.offset);
  } catch (const std::bad_alloc&) {
    mappings_.erase(made);
    throw;
  }
  ++memory->mappings;
  return true;
}

void virtual_memory::unmap(const mapping& which) {
  place_scratch(which.address, which.bytes);
  --which.of->mappings;
  mappings_.erase(which.address);
}

mapping* virtual_memory::find(std::uint64_t address) {
  return const_cast<mapping*>(std::as_const(*this).find(address));
}

const mapping* virtual_memory::find(std::uint64_t address) const {
  auto above = mappings_.upper_bound(address);
  if (above == mappings_.begin()) return nullptr;
  const mapping& candidate = std::prev(above)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

std::vector<mapping*> virtual_memory::filling(std::uint64_t address, std::size_t bytes) {
  std::vector<mapping*> all;
  const std::uint64_t end = address + bytes;
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first == address && address < end; ++at) {
    all.push_back(&at->second);
    address += at->second.bytes;
  }
  if (address != end) all.clear();
  return all;
}

std::pair<std::uint64_t, std::size_t> virtual_memory::reservation_of(std::uint64_t address) const {
  auto above = reservations_.upper_bound(address);
  if (above == reservations_.begin()) return {0, 0};
  const auto [start, bytes] = *std::prev(above);
  return address - start < bytes ? std::pair{start, bytes} : std::pair{std::uint64_t{0}, std::size_t{0}};
}

bool virtual_memory::owns(std::uint64_t address) const noexcept {
  return std::any_of(spaces_.begin(), spaces_.end(),
                     [&](const address_space& space) { return space.contains(address); });
}

void virtual_memory::clear() {
  while (!mappings_.empty()) unmap(mappings_.begin()->second);
  reservations_.clear();
  reserved_ = 0;
  for (address_space& space : spaces_) space.clear();
}

} // namespace simulated
