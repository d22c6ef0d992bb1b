// location_map, memory_advice: locations that prefetches and advice have set for ranges of addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "driver_api.hpp"

namespace simulated {

/// A location per range of addresses. The type CU_MEM_LOCATION_TYPE_INVALID stands for no location.
class location_map {
public:
  void set(std::uint64_t address, std::size_t bytes, const CUmemLocation& where) {
    split(address);
    split(address + bytes);
    ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + bytes));
    if (where.type != CU_MEM_LOCATION_TYPE_INVALID) ranges_.emplace(address, range{bytes, where});
  }

  /// Returns the location of the bytes, or no location if they do not all have the same one.
  [[nodiscard]] CUmemLocation of(std::uint64_t address, std::size_t bytes) const {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) return none;
    const CUmemLocation first = (--at)->second.where;
    std::uint64_t reached = at->first;
    for (; at != ranges_.end() && at->first == reached; ++at) {
      if (at->second.where.type != first.type || at->second.where.id != first.id) break;
      reached += at->second.bytes;
      if (reached >= address + bytes) return first;
    }
    return none;
  }

  void clear() { ranges_.clear(); }

private:
  static constexpr CUmemLocation none{CU_MEM_LOCATION_TYPE_INVALID, 0};
  struct range {
    std::size_t bytes;
    CUmemLocation where;
  };

  void split(std::uint64_t address) {
    const auto above = ranges_.lower_bound(address);
    if (above == ranges_.begin()) return;
    auto& [begin, held] = *std::prev(above);
    if (begin + held.bytes <= address) return;
    ranges_.emplace(address, range{held.bytes - (address - begin), held.where});
    held.bytes = address - begin;
  }

  std::map<std::uint64_t, range> ranges_;
};

/// Advice for managed memory, and for memory of the host that the devices can access.
struct memory_advice {
  location_map prefetched; // locations of the last prefetches
  location_map preferred;
  location_map read_mostly;                // any location means yes
  std::map<int, location_map> accessed_by; // by device, or CU_DEVICE_CPU; any location means yes

  void clear() { *this = {}; }
  /// Forgets the advice for memory that is freed.
  void forget(std::uint64_t address, std::size_t bytes) {
    constexpr CUmemLocation none{CU_MEM_LOCATION_TYPE_INVALID, 0};
    for (location_map* each : {&prefetched, &preferred, &read_mostly}) each->set(address, bytes, none);
    for (auto& [device, each] : accessed_by) each.set(address, bytes, none);
  }
};

} // namespace simulated
