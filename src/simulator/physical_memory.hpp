// physical_memory: the physical allocations of cuMemCreate, by handle. Each can be mapped at several addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver_api.hpp"
#include "handle_table.hpp"

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
  physical_memory(const physical_memory&) = delete;
  physical_memory& operator=(const physical_memory&) = delete;
  ~physical_memory();

  /// Throws std::bad_alloc if the system cannot make the memory file.
  std::shared_ptr<physical> create(const CUmemAllocationProp& properties, std::size_t bytes, std::uint64_t number);

  /// Returns a file descriptor that names the memory, for import() here or in another process; -1 if the system refuses
  /// one. It keeps no memory alive: other processes read zeros once this process has released the memory.
  [[nodiscard]] int share(const physical& which) const;
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
  bool collect(const physical& which);

  void clear();

private:
  void open_file();
  std::shared_ptr<physical> insert(physical made);

  handle_table<physical> handles_;
  int file_ = -1;
  std::uint64_t end_ = 0;
};

} // namespace simulated
