// Creates, maps, unmaps and releases the pages of one device, by driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
export module gpumem:page_mapper;
import :cuda;
import :device;
import :error;
import :page_table;
import :std;
import :virtual_pages_options;

namespace gpumem::detail {

/// A reserved address range of one device, and the driver calls that map pages there. Its owner keeps in a page_table
/// which pages are mapped. On a lost device, and while the process exits, pages are unmapped without driver calls. Not
/// thread-safe.
export class page_mapper {
public:
  // Reserves the addresses. Throws the same exceptions as the constructor of virtual_pages.
  page_mapper(device where, virtual_pages_options options);
  page_mapper(page_mapper const&) = delete;
  page_mapper& operator=(page_mapper const&) = delete;

  inline device where() const noexcept { return device_; }
  inline CUdeviceptr base() const noexcept { return base_; }
  inline std::size_t address_space() const noexcept { return address_space_; }
  inline std::size_t granularity() const noexcept { return granularity_; }
  std::size_t round_up(std::size_t bytes) const noexcept;
  // Returns the physical memory held, in bytes.
  inline std::size_t held_bytes() const noexcept { return held_bytes_; }
  // Returns whether the device had no memory for the last page that was created.
  inline bool is_full() const noexcept { return full_; }
  // Returns whether driver calls are of no use: the device is lost, or the process exits.
  bool is_gone() const noexcept;

  // Maps all pages of `made`, which together cover the run. Creates memory for pages that have none. Then calls the
  // option on_mapped, by which the user may refuse the pages. Returns null on success. Otherwise undoes all and returns
  // a failure for `requested` bytes; `made` then has only the pages that the driver refused to unmap or release.
  std::optional<failure> map(page_map& made, page_extent run, std::size_t requested) noexcept;
  // Calls the option on_unmapping, which tells the user that the run is about to be unmapped.
  void announce_unmapping(page_extent run) const noexcept;
  // Unmaps pages, and releases the memory of each page that is mapped nowhere else. Afterwards `leaving` has only the
  // pages that the driver refused to unmap or release.
  void unmap(page_map& leaving) noexcept;
  // Tries again to unmap and release pages that the driver refused before. Removes from `refused` those that it now
  // accepts.
  void retry(unreleased_map& refused) noexcept;
  // Returns whether the device has memory for the page: creates the memory and releases it again, as unmap() does.
  bool has_memory(page_map& page) noexcept;
  // Gives the addresses back; no page may be mapped there.
  void release_addresses() noexcept;
  // Lets another device read and write the pages, and all that are mapped later. Returns the driver's answer.
  CUresult open_to(device peer, page_map const& pages) noexcept;
  // Returns a file descriptor of the memory, for another process.
  expected<int, failure> export_page(physical_page const& page) noexcept;

private:
  template <class Call> CUresult on_device(Call call) noexcept;
  CUresult create(physical_page& page) noexcept;
  CUresult attach(std::size_t offset, mapped_page& at) noexcept;
  CUresult map_all(page_map& made, page_extent run) noexcept;
  bool notify_mapped(page_extent run) const noexcept;
  template <class Pages> void unmap_each(Pages& pages) noexcept;
  bool unmap_page(std::size_t offset, mapped_page& at) noexcept;

  device device_;
  virtual_pages_options options_;
  CUmemAllocationProp properties_;
  std::vector<CUmemAccessDesc> rights_;
  std::size_t granularity_;
  CUdeviceptr base_ = 0;
  std::size_t address_space_ = 0;
  std::size_t held_bytes_ = 0;
  bool full_ = false;
};

} // namespace gpumem::detail
