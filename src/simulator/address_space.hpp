// A reserved range of addresses, backed by zero pages only where it is touched, and what is given out of it.
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

  /// Reserves `bytes` of address space; throws std::bad_alloc where the system refuses.
  void reserve(std::size_t bytes);

  /// The lowest range that fits, or 0. The same calls give the same offsets.
  [[nodiscard]] std::uint64_t take(std::size_t bytes, std::size_t alignment);

  /// Gives a range back; its pages are dropped, so it reads as zero when taken again.
  void give(std::uint64_t address, std::size_t bytes);

  /// Forgets all ranges and drops all pages.
  void clear();

  [[nodiscard]] bool contains(std::uint64_t address) const noexcept { return address - base_ < bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

private:
  void drop_pages(std::uint64_t address, std::size_t bytes) const noexcept;

  std::uint64_t base_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t touched_end_ = 0;             // no range ended above this since the last clear
  std::map<std::uint64_t, std::size_t> free_; // address → bytes, never adjacent
};

} // namespace simulated
