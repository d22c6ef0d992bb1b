// physical_memory: the physical allocations of cuMemCreate, by handle. Each can be mapped at several addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver_api.hpp"
#include "handle_table.hpp"

namespace simulated {

/// Sizes, addresses and offsets are multiples of this; bytes.
inline constexpr std::size_t page_granularity = std::size_t{2} << 20;

/// One physical allocation. It lives while its handle has references or it is mapped.
struct physical {
  CUmemAllocationProp properties;
  std::size_t bytes;
  std::uint64_t offset; // in the file that holds its bytes; never used twice
  std::uint64_t number; // its block number in findings
  CUmemGenericAllocationHandle handle = 0;
  unsigned references = 1; // to its handle
  unsigned mappings = 0;

  [[nodiscard]] int device() const noexcept { return properties.location.id; }
  /// Returns the key of its first byte in the checker; above all addresses of the host.
  [[nodiscard]] std::uint64_t key() const noexcept { return (std::uint64_t{1} << 62) + offset; }
};

class physical_memory {
public:
  physical_memory() = default;
  physical_memory(const physical_memory&) = delete;
  physical_memory& operator=(const physical_memory&) = delete;
  ~physical_memory();

  /// Throws std::bad_alloc if the system refuses the file.
  std::shared_ptr<physical> create(const CUmemAllocationProp& properties, std::size_t bytes, std::uint64_t number);

  /// Returns the memory of a handle with references; null if there is none.
  [[nodiscard]] std::shared_ptr<physical> find(CUmemGenericAllocationHandle handle) const;
  /// Returns whether the handle existed and all references to it were released.
  [[nodiscard]] bool released(CUmemGenericAllocationHandle handle) const;

  /// Releases the memory if its handle has no references and it is mapped nowhere. Returns whether it did.
  bool collect(const physical& which);

  void clear();

  [[nodiscard]] int file() const noexcept { return file_; }

private:
  void open_file();

  handle_table<physical> handles_;
  int file_ = -1;
  std::uint64_t end_ = 0;
};

} // namespace simulated
