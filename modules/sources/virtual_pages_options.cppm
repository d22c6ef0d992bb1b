// The options of virtual pages.
// SPDX-License-Identifier: Apache-2.0
module;
#include <functional>
export module gpumem:virtual_pages_options;
import :device;
import :std;

namespace gpumem {

/// Options of virtual pages; sizes in bytes.
export struct virtual_pages_options {
  /// Addresses to reserve; 0: eight times the memory of the device, or, if the driver refuses that, four, two or one
  /// times. A pool reserves addresses as it grows; if this is not 0, each shard gets these at once, and no more. A pool
  /// for which the driver has no more addresses gets chunks, unless one of these options is set.
  std::size_t address_space = 0;
  std::vector<device> peers = {}; ///< other devices that may read and write the memory
  bool exportable = false;        ///< pages may be exported to other processes
  bool rdma = false;              ///< network devices may reach the memory

  /// `on_mapped` is called after each mapping, `on_unmapping` before each unmapping: for libraries that register memory
  /// (NCCL, UCX). If on_mapped returns false or throws, the mapping is undone; on_unmapping must not throw. Both run
  /// inside the functions of virtual_pages that map or unmap, so they must not call that object or take the lock that
  /// guards it. A function of a pool may allocate from the pool what it has free, free, and read statistics; the pool
  /// refuses calls that map or unmap pages. They are not called on a lost device.
  std::function<bool(void* address, std::size_t bytes)> on_mapped = {};
  /// Called before each unmapping; must not throw.
  std::function<void(void* address, std::size_t bytes)> on_unmapping = {};
};

namespace detail {
/// Returns whether the options ask for something that only pages have.
export inline bool needs_pages(virtual_pages_options const& pages) noexcept {
  return pages.address_space || !pages.peers.empty() || pages.exportable || pages.rdma || pages.on_mapped ||
         pages.on_unmapping;
}
} // namespace detail

} // namespace gpumem
