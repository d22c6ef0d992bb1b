// Pages of other processes that this process has mapped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string_view>

#include "../support/guarded_mutex.hpp"
#include "device_wait.hpp"

namespace gpumem::c {

class mapped_pages;

/// The opened pages of the process. Any thread.
class opened_pages {
public:
  /// Returns the one instance of the process; never destroyed.
  static opened_pages& instance();

  struct memory {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  /// Maps the pages that a process of the same user has shared under the name, readable and writable by the device.
  /// Waits for the other process, at most 10 s for each message. Throws std::runtime_error if that process cannot be
  /// reached or has ended the share, std::invalid_argument if the text is no name, and what the driver's failures
  /// throw.
  memory open(std::string_view name, int device);
  /// Waits for all work of the device and unmaps the memory. Throws std::invalid_argument if the address is not that of
  /// opened memory, and what device_wait::wait() throws; the memory then stays mapped.
  void close(void* base);

private:
  opened_pages() = default;
  ~opened_pages() = default;

  support::guarded_mutex mutex_;
  device_wait& wait_of(int device);

  std::map<void*, std::unique_ptr<mapped_pages>> open_ __attribute__((guarded_by(mutex_)));
  std::map<int, device_wait> waits_ __attribute__((guarded_by(mutex_))); // by device
};

} // namespace gpumem::c
