// address_space: a reserved range of addresses from which ranges are allocated; untouched pages take no memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace simulated {

class address_space {
public:
  address_space() = default;
  address_space(const address_space&) = delete;
  address_space& operator=(const address_space&) = delete;
  ~address_space();

  /// Reserves `bytes` of address space. Throws std::bad_alloc if the system refuses.
  void reserve(std::size_t bytes);

  /// Allocates the lowest range that fits; returns 0 if there is none. The same sequence of calls gives the same
  /// offsets.
  [[nodiscard]] std::uint64_t take(std::size_t bytes, std::size_t alignment);

  /// Frees a range. Its bytes read as zero when they are allocated again.
  void give(std::uint64_t address, std::size_t bytes);

  /// Frees all ranges and drops all pages.
  void clear();

  [[nodiscard]] bool contains(std::uint64_t address) const noexcept { return address - base_ < bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

private:
  void drop_pages(std::uint64_t address, std::size_t bytes) const noexcept;

  std::uint64_t base_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t touched_end_ = 0;             // the highest end of a range since the last clear()
  std::map<std::uint64_t, std::size_t> free_; // free ranges: bytes by address; neighbours are always joined
};

} // namespace simulated
