// Physical allocations, and the reserved addresses at which they are mapped.
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

#include "driver_api.hpp"
#include "handle_table.hpp"
#include "memory.hpp"
#include "report.hpp"

namespace simulated {

/// Sizes of physical allocations, and sizes and addresses of their mappings, must be multiples of this number of bytes.
inline constexpr std::size_t page_granularity = std::size_t{2} << 20;

/// Where the bytes of a physical allocation lie: in this process's memory file, or in that of the process that has
/// exported them.
struct file_place {
  int file;
  std::uint64_t offset;
};

/// One physical allocation. It lives while its handle has references or it is mapped.
struct physical {
  CUmemAllocationProp properties;
  std::size_t bytes;
  std::uint64_t offset; // not used again before clear(); own memory lies there in the memory file
  file_place place;
  std::uint64_t number; // block number in findings
  CUmemGenericAllocationHandle handle = 0;
  unsigned references = 1; // references to the handle
  unsigned mappings = 0;
  bool foreign = false; // another process has created the memory

  [[nodiscard]] int device() const noexcept { return properties.location.id; }
  /// Returns the number by which the checker of accesses knows the first byte. It is larger than all addresses of the
  /// host.
  [[nodiscard]] std::uint64_t key() const noexcept { return (std::uint64_t{1} << 62) + offset; }
};

class physical_memory {
public:
  physical_memory() = default;
  physical_memory(physical_memory const&) = delete;
  physical_memory& operator=(physical_memory const&) = delete;
  ~physical_memory();

  /// Throws std::bad_alloc if the system cannot make the memory file.
  std::shared_ptr<physical> create(CUmemAllocationProp const& properties, std::size_t bytes, std::uint64_t number);

  /// Returns a file descriptor that names the memory, for import() here or in another process; -1 if the system refuses
  /// one. It keeps no memory alive: other processes read zeros once this process has released the memory.
  [[nodiscard]] int share(physical const& memory) const;
  /// Returns the memory that share() has named; null if the descriptor is no such name. The caller owns a reference to
  /// the handle. Memory of this process is the same object again. That of another process is a new object, with these
  /// properties and the device of the original, and does not count as used on the device here. Throws std::bad_alloc if
  /// the system has no file descriptor.
  std::shared_ptr<physical> import(int descriptor, CUmemAllocationProp properties, std::uint64_t number);

  /// Returns the memory of a handle; null if there is none or no references to the handle are left.
  [[nodiscard]] std::shared_ptr<physical> find(CUmemGenericAllocationHandle handle) const;
  /// Returns whether the handle existed and all references to it were released.
  [[nodiscard]] bool released(CUmemGenericAllocationHandle handle) const;

  /// Releases the memory if it is mapped nowhere and no references to its handle are left. Returns whether it did.
  bool collect(physical const& memory);

  void clear();

private:
  void open_file();
  std::shared_ptr<physical> insert(physical memory);

  handle_table<physical> handles_;
  int file_ = -1;
  std::uint64_t end_ = 0;
};

/// Physical memory that is mapped at an address. Each mapping keeps the uses through its own address, since the same
/// memory may stay mapped at other addresses after an unmap here.
struct mapping {
  struct use {
    std::uint64_t number;
    party name;
  };

  std::uint64_t address;
  std::size_t bytes;
  std::shared_ptr<physical> memory;
  std::map<int, CUmemAccess_flags> access; // by device
  std::map<std::uint32_t, use> uses;       // the newest use by each component of vector clocks: a stream, or the host

  [[nodiscard]] CUmemAccess_flags access_of(int device) const {
    auto const found = access.find(device);
    return found == access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
  }
};

/// A part of a range of addresses that lies in one mapping, or is not mapped.
struct run {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t key; // the checker's number of the first byte: its address, or its physical location if mapped
  mapping* mapped = nullptr;
};

class virtual_memory {
public:
  /// Sets the most bytes that may be reserved at a time; 0: no bound.
  void set_most(std::size_t bytes) noexcept { most_ = bytes; }
  /// Reserves the lowest free range of addresses that fits. Returns 0 if there is none.
  std::uint64_t reserve(std::size_t bytes, std::size_t alignment);
  /// Ends a reservation. Returns false if there is no such reservation or a part of it is mapped.
  bool unreserve(std::uint64_t address, std::size_t bytes);

  /// Maps physical memory. Returns false if the addresses are not reserved or a part of them is mapped. Throws
  /// std::bad_alloc if the system allows no more mappings.
  bool map(std::uint64_t address, std::size_t bytes, std::shared_ptr<physical> const& memory);
  void unmap(mapping const& mapping);

  /// Returns the mapping that holds the address; null if there is none.
  [[nodiscard]] mapping* find(std::uint64_t address);
  [[nodiscard]] mapping const* find(std::uint64_t address) const;
  /// Returns the mappings that together fill the range exactly; an empty list if there are none.
  [[nodiscard]] std::vector<mapping*> filling(std::uint64_t address, std::size_t bytes);
  /// Returns the reservation that holds the address, as (address, bytes); (0, 0) if there is none.
  [[nodiscard]] std::pair<std::uint64_t, std::size_t> reservation_of(std::uint64_t address) const;

  /// Returns whether the address lies in an address space of virtual memory.
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept;

  /// Calls `visit(run)` for each part of the range, in the order of addresses: for mapped and for unmapped parts. The
  /// whole range must lie in one address space of virtual memory.
  template <class Visit> void visit(std::uint64_t address, std::uint64_t bytes, Visit&& visit) {
    std::uint64_t const end = address + bytes;
    auto next = mappings_.upper_bound(address);
    if (next != mappings_.begin() && std::prev(next)->second.address + std::prev(next)->second.bytes > address) --next;
    while (address < end) {
      if (next == mappings_.end() || next->first > address) {
        std::uint64_t const stop = next == mappings_.end() ? end : std::min(end, next->first);
        visit(run{address, stop - address, address});
        address = stop;
        continue;
      }
      mapping& at = next->second;
      std::uint64_t const stop = std::min(end, at.address + at.bytes);
      visit(run{address, stop - address, at.memory->key() + (address - at.address), &at});
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
