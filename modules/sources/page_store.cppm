// The physical pages of one device that one owner holds: created and released by driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <map>
#include <memory>
export module gpumem:page_store;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :page_table;
import :std;
import :virtual_pages_options;

namespace gpumem::detail {

/// Owns physical pages. Address ranges (virtual_pages) map them; a page is mapped once, or for the time of a move
/// twice. On a lost device, and while the process exits, pages are released without driver calls. Not thread-safe: the
/// owner of the ranges makes one call at a time.
export class page_store {
public:
  /// Throws the same exceptions as the constructor of virtual_pages.
  page_store(device where, virtual_pages_options options);
  page_store(page_store const&) = delete;
  page_store& operator=(page_store const&) = delete;

  inline device where() const noexcept { return device_; }
  inline virtual_pages_options const& options() const noexcept { return options_; }
  inline std::size_t granularity() const noexcept { return granularity_; }
  inline std::size_t round_up(std::size_t bytes) const noexcept {
    return (bytes + granularity_ - 1) / granularity_ * granularity_;
  }
  /// Returns the physical memory of all pages, in bytes.
  inline std::size_t held_bytes() const noexcept { return held_bytes_; }
  /// Returns whether the device had no memory for the last page that was created.
  inline bool is_full() const noexcept { return full_; }
  /// Returns the most addresses that one range is given, in bytes: eight times the device's memory, since moved pages
  /// leave holes. Throws cuda_error at the first call, which asks the driver.
  std::size_t most_addresses();
  /// Returns whether driver calls are of no use: the device is lost, or the process exits.
  inline bool is_gone() const noexcept { return !driver_alive() || device_.lost(); }
  /// Calls a function while the device is current; also if driver calls are of no use.
  template <class Call> inline CUresult on_device(Call call) const noexcept {
    return is_gone() ? call() : call_on(device_, call);
  }

  /// Creates the page's memory. Returns the driver's answer.
  CUresult create(physical_page& page) noexcept;
  /// Releases a page that is mapped nowhere. Returns false if the driver refuses.
  bool release(physical_page& page) noexcept;
  /// Returns whether the device has memory for the page: creates the memory, and releases it again.
  bool has_memory(physical_page& page) noexcept;

  /// Returns the right of a device to read and write.
  static inline CUmemAccessDesc right_of(device peer) noexcept {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, peer.ordinal()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  /// Returns the devices that may use the pages.
  inline std::span<CUmemAccessDesc const> rights() const noexcept { return rights_; }
  bool is_open_to(device peer) const noexcept;
  /// Adds a device to these, unless it is among them. Returns CUDA_ERROR_OUT_OF_MEMORY if the host has no memory.
  CUresult open_to(device peer) noexcept;
  /// Returns a file descriptor of the memory, for another process.
  expected<int, failure> export_page(physical_page const& page) const noexcept;

private:
  device device_;
  virtual_pages_options options_;
  CUmemAllocationProp properties_;
  std::vector<CUmemAccessDesc> rights_;
  std::size_t granularity_;
  std::size_t most_addresses_ = 0;
  std::size_t held_bytes_ = 0;
  bool full_ = false;
};

} // namespace gpumem::detail
