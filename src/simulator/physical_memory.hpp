// Physical memory by handle: what cuMemCreate makes, to be mapped anywhere and any number of times.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver_api.hpp"
#include "handle_table.hpp"

namespace simulated {

/// What sizes, addresses and offsets are multiples of.
inline constexpr std::size_t page_granularity = std::size_t{2} << 20;

/// One physical allocation: it lives while its handle is referred to or it is mapped somewhere.
struct physical {
  CUmemAllocationProp properties;
  std::size_t bytes;
  std::uint64_t offset; // in the file that holds its bytes, never used twice
  std::uint64_t number; // of the block that it is in findings
  CUmemGenericAllocationHandle handle = 0;
  unsigned references = 1; // of its handle
  unsigned mappings = 0;

  [[nodiscard]] int device() const noexcept { return properties.location.id; }
  /// Where its bytes are for whoever has to tell physical bytes apart: at no address of the host.
  [[nodiscard]] std::uint64_t key() const noexcept { return (std::uint64_t{1} << 62) + offset; }
};

class physical_memory {
public:
  physical_memory() = default;
  physical_memory(const physical_memory&) = delete;
  physical_memory& operator=(const physical_memory&) = delete;
  ~physical_memory();

  /// Throws std::bad_alloc where the system refuses the file.
  std::shared_ptr<physical> create(const CUmemAllocationProp& properties, std::size_t bytes, std::uint64_t number);

  /// By a handle that is still referred to, or null.
  [[nodiscard]] std::shared_ptr<physical> find(CUmemGenericAllocationHandle handle) const;
  /// Whether the handle was released by all who had it.
  [[nodiscard]] bool released(CUmemGenericAllocationHandle handle) const;

  /// Forgets it if nobody refers to it and it is mapped nowhere; whether it is gone.
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
