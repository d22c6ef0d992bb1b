// Reserves an address range, and maps and unmaps pages there, by driver calls.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <memory>
export module gpumem:page_mapper;
import :cuda;
import :device;
import :error;
import :page_store;
import :page_table;
import :std;

namespace gpumem::detail {

/// A reserved address range, and the driver calls that map pages of a store there. Its owner keeps in a page_table
/// which pages are mapped. On a lost device, and while the process exits, pages are unmapped without driver calls. Not
/// thread-safe.
export class page_mapper {
public:
  // Reserves `most` bytes of addresses. If the driver refuses, tries half of that, and so on down to `least`. Throws
  // std::invalid_argument if `most` is too large, and cuda_error.
  page_mapper(std::shared_ptr<page_store> pages, std::size_t most, std::size_t least);
  page_mapper(page_mapper const&) = delete;
  page_mapper& operator=(page_mapper const&) = delete;

  inline page_store& store() const noexcept { return *store_; }
  inline CUdeviceptr base() const noexcept { return base_; }
  inline std::size_t address_space() const noexcept { return address_space_; }

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
  // Gives the addresses back; no page may be mapped there.
  void release_addresses() noexcept;
  // Lets another device read and write the pages. Returns the driver's answer.
  CUresult open_to(device peer, page_map const& pages) noexcept;

private:
  CUresult attach(std::size_t offset, mapped_page& at) noexcept;
  CUresult map_all(page_map& made, page_extent run) noexcept;
  bool notify_mapped(page_extent run) const noexcept;
  template <class Pages> void unmap_each(Pages& pages) noexcept;
  bool unmap_page(std::size_t offset, mapped_page& at) const noexcept;

  std::shared_ptr<page_store> store_;
  CUdeviceptr base_ = 0;
  std::size_t address_space_ = 0;
};

} // namespace gpumem::detail
