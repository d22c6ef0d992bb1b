// The physical pages of an owner: their options, their table, and the store that creates and destroys them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <functional>
#include <map>
#include <memory>
#include <ranges>
export module gpumem:page_store;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :memory_watcher;
import :std;

namespace gpumem {

namespace extend {
/// A run of addresses, in bytes. The source is the virtual_pages object that has reserved the addresses.
export struct page_extent {
  std::size_t offset = 0; ///< from the first address of the source
  std::size_t bytes = 0;  ///< length of the run

  /// Returns the offset after the run.
  inline std::size_t end() const noexcept { return offset + bytes; }
  bool operator==(page_extent const&) const = default;
};

/// A page: one physical allocation, and the addresses at which it is mapped.
export struct page_info {
  page_extent extent;   ///< addresses of the page
  bool pinned = false;  ///< another library or process uses it, so it may not be moved or unmapped
  bool aliased = false; ///< the same memory is mapped at another offset too

  bool operator==(page_info const&) const = default;
};
} // namespace extend

/// A page that another process can map.
export struct exported_page {
  int descriptor = -1;   ///< file descriptor of the page; its receiver closes it
  void* base = nullptr;  ///< first address of the page in this process
  std::size_t bytes = 0; ///< size of the page
};

namespace detail {

/// The physical memory of a page, which the driver can map at several offsets.
export struct physical_page {
  CUmemGenericAllocationHandle handle = 0;
  bool held = false; ///< the driver has created the memory, and it is not destroyed
  std::size_t bytes = 0;
  unsigned mappings = 0;
  unsigned pins = 0;
};
/// One mapping of a page.
export struct mapped_page {
  std::shared_ptr<physical_page> of;
  bool mapped = false; ///< false before the mapping is made, and after it was unmapped
};
/// Pages by offset; nodes move between maps without allocation.
export using page_map = std::map<std::size_t, mapped_page>;
/// Neighbours in a page_map.
export using page_span = std::ranges::subrange<page_map::const_iterator>;
/// Pages that the driver refused to unmap or destroy, by offset; several may have been mapped at one offset.
export using refused_page_map = std::multimap<std::size_t, mapped_page>;

/// Returns new pages of `page` bytes for the run; the last one may be smaller. Creates no memory. Throws
/// std::bad_alloc.
export page_map plan_pages(page_extent run, std::size_t page);
/// Returns what users of virtual_pages see of the page.
export page_info info_of(page_map::value_type const& page) noexcept;
/// Returns whether one of the pages is pinned.
export bool any_pinned(page_span const& pages) noexcept;

/// The pages of one address range. Makes no driver call. Not thread-safe. Only plan_pages() allocates.
export class page_table {
public:
  inline page_map const& pages() const noexcept { return pages_; }
  // Pages that the driver refused to unmap still occupy their addresses; the owner tries them again.
  inline refused_page_map& refused_pages() noexcept { return refused_pages_; }

  // Returns the page that holds the offset; pages().end() if none is mapped there.
  page_map::const_iterator find_containing(std::size_t offset) const noexcept;
  // Returns the pages that hold the bytes of the run; an empty span if a part of them is not mapped.
  page_span pages_holding(page_extent run) const noexcept;
  // Returns the pages that make up the run; an empty span if it does not consist of whole pages.
  page_span pages_of(page_extent run) const noexcept;
  bool is_unmapped(page_extent run) const noexcept;
  // Returns the offset after the last mapped page.
  std::size_t mapped_end() const noexcept;
  // Returns the offset of the smallest hole of at least `bytes`. If there is no such hole, returns mapped_end(), or
  // none if fewer than `bytes` are left between mapped_end() and `space`.
  std::optional<std::size_t> find_extent(std::size_t bytes, std::size_t space) const noexcept;

  // Takes over mapped pages at unmapped offsets.
  void add(page_map& pages) noexcept;
  // Removes the pages from the table and returns them.
  page_map take(page_span const& pages) noexcept;
  // Takes over the pages that the driver refused to unmap or destroy.
  void keep_refused(page_map& refused) noexcept;

private:
  page_map pages_;
  refused_page_map refused_pages_;
};

} // namespace detail
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

namespace gpumem::detail {

/// Owns physical pages. Address ranges (virtual_pages) map them; a page is mapped once, or for the time of a move
/// twice. On a lost device, and while the process exits, pages are destroyed without driver calls. Not thread-safe: the
/// owner of the ranges makes one call at a time.
export class page_store {
public:
  /// Throws the same exceptions as the constructor of virtual_pages.
  page_store(device device, virtual_pages_options options);
  page_store(page_store const&) = delete;
  page_store& operator=(page_store const&) = delete;

  inline device where() const noexcept { return device_; }
  inline virtual_pages_options const& options() const noexcept { return options_; }
  /// Returns the watchers that address ranges tell of pages that they map, unmap and move.
  inline memory_watchers& watchers() noexcept { return watchers_; }
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
  /// Destroys a page that is mapped nowhere. Returns false if the driver refuses.
  bool destroy(physical_page& page) noexcept;
  /// Returns whether the device has memory for the page: creates the memory, and destroys it again.
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
  memory_watchers watchers_;
  bool full_ = false;
};

} // namespace gpumem::detail
