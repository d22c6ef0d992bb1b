// memory: the driver's allocations of device, pinned, managed and registered memory, found by any address in them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "address_space.hpp"

namespace simulated {

struct context;

enum class memory_kind { device, pinned, managed, registered };

struct allocation {
  std::uint64_t address;
  std::size_t bytes;   // requested bytes
  std::size_t granted; // rounded-up bytes
  memory_kind kind;
  int device;
  context* home;
  std::uint64_t number;
  std::uint64_t buffer_id;
};

class memory {
public:
  /// Sets the memory of one device, in bytes, and reserves the address spaces of the devices. Allocations stay, and
  /// count against the new capacity.
  void configure(int devices, std::size_t capacity);

  /// Frees all allocations and gives their pages back to the system.
  void clear();

  /// Allocates memory. `number` is the block's number in findings. Returns null if the device is full or, for memory on
  /// the host, if the address space of the host is full.
  const allocation* allocate(memory_kind kind, int device, context* home, std::size_t bytes, std::uint64_t number);
  const allocation* register_host(void* pointer, std::size_t bytes, int device, context* home, std::uint64_t number);
  void release(std::uint64_t address);

  /// Counts device memory for cuMemCreate; this class does not keep these allocations. Returns false if the device is
  /// full.
  bool charge(int device, std::size_t bytes);
  void discharge(int device, std::size_t bytes) { spaces_[device]->used -= bytes; }

  /// Returns the allocation that holds `address`; null if there is none.
  [[nodiscard]] const allocation* find(std::uint64_t address) const;

  /// Returns whether the address lies in the address spaces for device, pinned and managed memory.
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept;

  [[nodiscard]] std::size_t used(int device) const { return spaces_[device]->used; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::vector<std::uint64_t> of(const context* home) const;

private:
  /// A later reset with more capacity adds a space.
  struct device_space {
    std::deque<address_space> spaces;
    std::size_t used = 0;

    void widen(std::size_t bytes);
    [[nodiscard]] std::uint64_t take(std::size_t bytes, std::size_t alignment);
    void give(std::uint64_t address, std::size_t bytes);
    [[nodiscard]] bool contains(std::uint64_t address) const noexcept;
  };

  std::vector<std::unique_ptr<device_space>> spaces_;
  address_space host_;
  std::size_t capacity_ = 0;
  std::map<std::uint64_t, allocation> live_;
  std::uint64_t next_buffer_id_ = 1;
};

} // namespace simulated
