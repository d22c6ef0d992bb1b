// The driver's allocations, the address spaces that hold them, and the locations that advice and prefetches set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "driver_api.hpp"

namespace simulated {

class address_space {
public:
  address_space() = default;
  address_space(address_space const&) = delete;
  address_space& operator=(address_space const&) = delete;
  ~address_space();

  /// Reserves `bytes` of address space. Throws std::bad_alloc if the system refuses.
  void reserve(std::size_t bytes);

  /// Allocates the lowest range that fits; returns 0 if there is none. The same sequence of calls gives the same
  /// offsets.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes, std::size_t alignment);

  /// Frees a range. Its bytes read as zero when they are allocated again.
  void free(std::uint64_t address, std::size_t bytes);

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
  allocation const* allocate(memory_kind kind, int device, context* home, std::size_t bytes, std::uint64_t number);
  allocation const* register_host(void* pointer, std::size_t bytes, int device, context* home, std::uint64_t number);
  void free(std::uint64_t address);

  /// Counts device memory for cuMemCreate; this class does not keep these allocations. Returns false if the device is
  /// full.
  bool charge(int device, std::size_t bytes);
  void discharge(int device, std::size_t bytes) { spaces_[device]->used -= bytes; }

  /// Returns the allocation that holds `address`; null if there is none.
  [[nodiscard]] allocation const* find(std::uint64_t address) const;

  /// Returns whether the address lies in the address spaces for device, pinned and managed memory.
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept;

  [[nodiscard]] std::size_t used(int device) const { return spaces_[device]->used; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::vector<std::uint64_t> of(context const* home) const;

private:
  /// A later reset with more capacity adds a space.
  struct device_space {
    std::deque<address_space> spaces;
    std::size_t used = 0;

    void widen(std::size_t bytes);
    [[nodiscard]] std::uint64_t allocate(std::size_t bytes, std::size_t alignment);
    void free(std::uint64_t address, std::size_t bytes);
    [[nodiscard]] bool contains(std::uint64_t address) const noexcept;
  };

  std::vector<std::unique_ptr<device_space>> spaces_;
  address_space host_;
  std::size_t capacity_ = 0;
  std::map<std::uint64_t, allocation> live_;
  std::uint64_t next_buffer_id_ = 1;
};

/// A location per range of addresses. The type CU_MEM_LOCATION_TYPE_INVALID stands for no location.
class location_map {
public:
  void set(std::uint64_t address, std::size_t bytes, CUmemLocation const& location) {
    split(address);
    split(address + bytes);
    ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + bytes));
    if (location.type != CU_MEM_LOCATION_TYPE_INVALID) ranges_.emplace(address, range{bytes, location});
  }

  /// Returns the location of the bytes, or no location if they do not all have the same one.
  [[nodiscard]] CUmemLocation of(std::uint64_t address, std::size_t bytes) const {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) return none;
    CUmemLocation const first = (--at)->second.location;
    std::uint64_t reached = at->first;
    for (; at != ranges_.end() && at->first == reached; ++at) {
      if (at->second.location.type != first.type || at->second.location.id != first.id) break;
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
    CUmemLocation location;
  };

  void split(std::uint64_t address) {
    auto const above = ranges_.lower_bound(address);
    if (above == ranges_.begin()) return;
    auto& [begin, block_here] = *std::prev(above);
    if (begin + block_here.bytes <= address) return;
    ranges_.emplace(address, range{block_here.bytes - (address - begin), block_here.location});
    block_here.bytes = address - begin;
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
