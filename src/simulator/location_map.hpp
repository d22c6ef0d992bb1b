// location_map: the location that a call has named for each range of addresses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "driver_api.hpp"

namespace simulated {

/// A location is the number of a device, CU_DEVICE_CPU, or CU_DEVICE_INVALID for none. A call forgets all earlier
/// ranges that overlap its own.
class location_map {
public:
  void set(std::uint64_t address, std::size_t bytes, int where) {
    auto at = ranges_.lower_bound(address);
    if (at != ranges_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address) --at;
    while (at != ranges_.end() && at->first < address + bytes) at = ranges_.erase(at);
    if (where != CU_DEVICE_INVALID) ranges_.emplace(address, range{bytes, where});
  }

  /// Returns the location of the bytes, if one call has named it for all of them.
  [[nodiscard]] int of(std::uint64_t address, std::size_t bytes) const {
    const auto above = ranges_.upper_bound(address);
    if (above == ranges_.begin()) return CU_DEVICE_INVALID;
    const auto& [begin, held] = *std::prev(above);
    return address + bytes <= begin + held.bytes ? held.where : int{CU_DEVICE_INVALID};
  }

  void clear() { ranges_.clear(); }

private:
  struct range {
    std::size_t bytes;
    int where;
  };
  std::map<std::uint64_t, range> ranges_;
};

} // namespace simulated
