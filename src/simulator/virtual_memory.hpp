// virtual_memory: reserved addresses, the physical memory that is mapped at them, and the access of devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "address_space.hpp"
#include "physical_memory.hpp"
#include "report.hpp"

namespace simulated {

/// Physical memory that is mapped at an address. Each mapping keeps the uses through its own address, since the same
/// memory may stay mapped at other addresses after an unmap here.
struct mapping {
  struct use {
    std::uint64_t number;
    party name;
  };

  std::uint64_t address;
  std::size_t bytes;
  std::shared_ptr<physical> of;
  std::map<int, CUmemAccess_flags> access; // by device
  std::map<std::uint32_t, use> uses;       // the newest use by each component of vector clocks: a stream, or the host

  [[nodiscard]] CUmemAccess_flags access_of(int device) const {
    const auto found = access.find(device);
    return found == access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
  }
};

/// A part of a range of addresses that lies in one mapping, or is not mapped.
struct run {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t key; // the checker's number of the first byte: its address, or its physical location if mapped
  mapping* through = nullptr;
};

class virtual_memory {
public:
  /// Sets the most bytes that may be reserved at a time; 0: no bound.
  void set_most(std::size_t bytes) noexcept { most_ = bytes; }
  /// Reserves the lowest free range of addresses that fits. Returns 0 if there is none.
  std::uint64_t reserve(std::size_t bytes, std::size_t alignment);
  /// Ends a reservation. Returns false if there is no such reservation or a part of it is mapped.
  bool release(std::uint64_t address, std::size_t bytes);

  /// Maps physical memory. Returns false if the addresses are not reserved or a part of them is mapped. Throws
  /// std::bad_alloc if the system allows no more mappings.
  bool map(std::uint64_t address, std::size_t bytes, const std::shared_ptr<physical>& memory);
  void unmap(const mapping& which);

  /// Returns the mapping that holds the address; null if there is none.
  [[nodiscard]] mapping* find(std::uint64_t address);
  [[nodiscard]] const mapping* find(std::uint64_t address) const;
  /// Returns the mappings that together fill the range exactly; an empty list if there are none.
  [[nodiscard]] std::vector<mapping*> filling(std::uint64_t address, std::size_t bytes);
  /// Returns the reservation that holds the address, as (address, bytes); (0, 0) if there is none.
  [[nodiscard]] std::pair<std::uint64_t, std::size_t> reservation_of(std::uint64_t address) const;

  /// Returns whether the address lies in an address space of virtual memory.
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept;

  /// Calls `visit(run)` for each part of the range, in the order of addresses: for mapped and for unmapped parts. The
  /// whole range must lie in one address space of virtual memory.
  template <class Visit> void visit(std::uint64_t address, std::uint64_t bytes, Visit&& visit) {
    const std::uint64_t end = address + bytes;
    auto next = mappings_.upper_bound(address);
    if (next != mappings_.begin() && std::prev(next)->second.address + std::prev(next)->second.bytes > address) --next;
    while (address < end) {
      if (next == mappings_.end() || next->first > address) {
        const std::uint64_t stop = next == mappings_.end() ? end : std::min(end, next->first);
        visit(run{address, stop - address, address});
        address = stop;
        continue;
      }
      mapping& at = next->second;
      const std::uint64_t stop = std::min(end, at.address + at.bytes);
      visit(run{address, stop - address, at.of->key() + (address - at.address), &at});
      address = stop;
      ++next;
    }
  }

  void clear();

  [[nodiscard]] std::size_t mappings() const noexcept { return mappings_.size(); }
  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }

private:
  std::deque<address_space> spaces_;
  std::map<std::uint64_t, std::size_t> reservations_;
  std::map<std::uint64_t, mapping> mappings_;
  std::size_t reserved_ = 0;
  std::size_t most_ = 0;
};

} // namespace simulated
