// What the driver has allocated: device, pinned, managed and registered memory, found by any address in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "address_space.hpp"

namespace simulated {

struct context;

enum class memory_kind { device, pinned, managed, registered };

struct allocation {
  std::uint64_t address;
  std::size_t bytes;   // as asked for
  std::size_t granted; // as taken from the device
  memory_kind kind;
  int device;
  context* home;
  std::uint64_t number;
  std::uint64_t buffer_id;
};

class memory {
public:
  /// Reserves the address spaces; `capacity` is what a device can hold.
  void configure(int devices, std::size_t capacity);

  /// Forgets every allocation and drops every page.
  void clear();

  /// Null when the device is full (or the host space, for host kinds).
  const allocation* allocate(memory_kind kind, int device, context* home, std::size_t bytes, std::uint64_t number);
  const allocation* register_host(void* pointer, std::size_t bytes, int device, context* home, std::uint64_t number);
  void release(std::uint64_t address);

  /// Counts memory of a device that is held by other means than an allocation; false when the device is full.
  bool charge(int device, std::size_t bytes);
  void discharge(int device, std::size_t bytes) { spaces_[device]->used -= bytes; }

  /// The allocation that holds `address`, or null.
  [[nodiscard]] const allocation* find(std::uint64_t address) const;

  /// Whether the address can only be device, pinned or managed memory of this driver.
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept;

  [[nodiscard]] std::size_t used(int device) const { return spaces_[device]->used; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::vector<std::uint64_t> of(const context* home) const;

private:
  struct device_space {
    address_space space;
    std::size_t used = 0;
  };

  std::vector<std::unique_ptr<device_space>> spaces_;
  address_space host_;
  std::size_t capacity_ = 0;
  std::map<std::uint64_t, allocation> live_;
  std::uint64_t next_buffer_id_ = 1;
};

} // namespace simulated
