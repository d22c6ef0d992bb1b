// virtual_pages: an address range at which pages of a page_store are mapped.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <map>
#include <memory>
#include <span>
export module gpumem:virtual_pages;
import :cuda;
import :device;
import :error;
import :page_store;
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

  // Maps all pages of `pages`, which together cover the run. Creates memory for pages that have none. Then calls the
  // option on_mapped, by which the user may refuse the pages. Returns null on success. Otherwise undoes all and returns
  // a failure for `requested` bytes; `pages` then has only the pages that the driver refused to unmap or destroy.
  std::optional<failure> map(page_map& pages, page_extent run, std::size_t requested) noexcept;
  // Calls the option on_unmapping, which tells the user that the run is about to be unmapped.
  void announce_unmapping(page_extent run) const noexcept;
  // Unmaps pages, and destroys the memory of each page that is mapped nowhere else. Afterwards `pages` has only the
  // pages that the driver refused to unmap or destroy.
  void unmap(page_map& pages) noexcept;
  // Tries again to unmap and destroy pages that the driver refused before. Removes from `refused` those that it now
  // accepts.
  void retry(refused_page_map& refused) noexcept;
  // Gives the addresses back; no page may be mapped there.
  void free_addresses() noexcept;
  // Lets another device read and write the pages. Returns the driver's answer.
  CUresult open_to(device peer, page_map const& pages) noexcept;

private:
  CUresult attach(std::size_t offset, mapped_page& page) noexcept;
  CUresult map_all(page_map& pages, page_extent run) noexcept;
  bool notify_mapped(page_extent run) const noexcept;
  template <class Pages> void unmap_each(Pages& pages) noexcept;
  bool unmap_page(std::size_t offset, mapped_page& page) const noexcept;

  std::shared_ptr<page_store> store_;
  CUdeviceptr base_ = 0;
  std::size_t address_space_ = 0;
};

} // namespace gpumem::detail

namespace gpumem {

namespace extend {
/// An upstream from which a pool maps single pages. Offsets are bytes from base(), in multiples of granularity(). All
/// mapped memory may be used by every stream immediately.
///
/// - To grow by `n` bytes, call `map(*find_extent(n), n)`. find_extent() returns the smallest hole of at least `n`
///   bytes; without one it returns mapped_end(), so that the mapped addresses stay together. If the last range of the
///   pool is free and ends at mapped_end(), the pool maps only the missing bytes there, and both form one range.
/// - Memory is unmapped in whole pages. page_of() returns the page that holds an address; a page that is only partly
///   free stays mapped.
/// - Free pages can be moved to where memory is needed. alias() maps a wholly free page at a second offset, without a
///   wait; unmap() of the first offset follows once the host has seen all use of the page there complete. The stream
///   uses of the page move with it.
/// - mapped_bytes() is the physical memory that the source holds.
export template <class S>
concept page_source = requires(S& source, S const& const_source, std::size_t n, void const* address) {
  { const_source.base() } noexcept -> std::same_as<void*>;
  { const_source.address_space() } noexcept -> std::same_as<std::size_t>;
  { const_source.granularity() } noexcept -> std::same_as<std::size_t>;
  { const_source.mapped_bytes() } noexcept -> std::same_as<std::size_t>;
  { const_source.mapped_end() } noexcept -> std::same_as<std::size_t>;
  { const_source.find_extent(n) } noexcept -> std::same_as<std::optional<std::size_t>>;
  { const_source.page_of(address) } noexcept -> std::same_as<std::optional<page_info>>;
  { source.map(n, n) } noexcept -> std::same_as<expected<page_extent, failure>>;
  { source.unmap(n, n) } noexcept -> std::same_as<bool>;
  { source.alias(n, n) } noexcept -> std::same_as<expected<page_extent, failure>>;
};
} // namespace extend

namespace detail {
/// The granularity of pages on all known devices, in bytes. A device with a larger granularity rounds this size up.
export inline constexpr std::size_t smallest_page = std::size_t{2} << 20;
/// The largest page that virtual_pages chooses by itself: larger pages are rarely free as a whole. Bytes.
export inline constexpr std::size_t largest_page = std::size_t{32} << 20;
} // namespace detail

namespace extend {
export class virtual_pages;

/// Pages that are to be moved, and the object that maps them.
export struct page_origin {
  virtual_pages* from = nullptr; ///< the object
  page_extent extent;            ///< whole pages there
};

/// Virtual memory of one device, as a page source. Its addresses are reserved at construction and cost no memory. On an
/// H200 it took about 27 µs to create a page, 33 µs to move one and 21 µs to destroy one, whatever its size. So the
/// page size grows with the mapped bytes (see next_page_size()) unless the caller names one.
///
/// No call waits for the device. Before it unmaps or moves pages, the caller must make sure that the *host* has seen
/// all work on their addresses complete; an order between streams is not enough.
///
/// Not thread-safe: the owner makes one call at a time. Other calls, even those that only read, must not run during
/// map(), unmap(), alias(), move(), pin() or unpin(). The owner needs no lock for that if only one of its threads calls
/// the source.
///
/// A call that fails changes nothing. Failures: exhausted (no memory), too_large (no addresses), device_lost,
/// driver_error, and invalid_argument for wrong arguments. On a lost device, and while the process exits, unmap() and
/// the destructor make no driver calls.
export class virtual_pages {
public:
  /// Throws std::invalid_argument if a peer cannot access the device, or if the address space is too large. Throws
  /// cuda_error: CUDA_ERROR_NOT_SUPPORTED if the device lacks virtual memory or a feature that an option needs.
  explicit virtual_pages(gpumem::device device = gpumem::device{0}, virtual_pages_options options = {});
  /// Maps pages of a store that other objects map too. Reserves `most` bytes of addresses. If the driver refuses that,
  /// reserves half of them, and so on down to `least`. Throws std::invalid_argument and cuda_error.
  virtual_pages(std::shared_ptr<detail::page_store> pages, std::size_t most, std::size_t least);
  virtual_pages(virtual_pages const&) = delete;
  virtual_pages& operator=(virtual_pages const&) = delete;
  /// Releases all memory, pinned pages too; no work may use it any more.
  ~virtual_pages();

  /// Returns whether the device has virtual memory; false if the driver cannot be asked.
  static bool supported(gpumem::device device) noexcept;

  /// Returns the device.
  gpumem::device where() const noexcept { return store().where(); }
  /// Returns the first reserved address.
  void* base() const noexcept { return reinterpret_cast<void*>(mapper_.base()); }
  /// Returns the reserved addresses, in bytes.
  std::size_t address_space() const noexcept { return mapper_.address_space(); }
  /// Offsets and page sizes are multiples of this; bytes.
  std::size_t granularity() const noexcept { return store().granularity(); }
  /// Returns the bytes, rounded up to a multiple of the granularity.
  std::size_t round_up(std::size_t bytes) const noexcept { return store().round_up(bytes); }

  /// Returns the physical memory of all mapped pages of the store, in bytes; a page that is mapped twice counts once.
  std::size_t mapped_bytes() const noexcept { return store().held_bytes(); }
  /// Returns the offset after the last mapped page.
  std::size_t mapped_end() const noexcept { return table_.mapped_end(); }
  /// Returns the number of mapped pages; each alias counts as one.
  std::size_t pages() const noexcept { return table_.pages().size(); }
  /// Returns the size of a page created now: 1/128 of the mapped bytes, between 2 and 32 MiB.
  std::size_t next_page_size() const noexcept;

  /// Returns the offset at which `bytes` can be mapped: the smallest hole that is large enough, otherwise mapped_end();
  /// none if too few addresses are left.
  std::optional<std::size_t> find_extent(std::size_t bytes) const noexcept;

  /// Lets another device read and write the memory that is mapped now, and all that is mapped later. Returns the
  /// driver's answer.
  CUresult open_to(gpumem::device peer) noexcept;
  /// Does the same for the memory that is mapped in this object now.
  CUresult open_mapped_to(gpumem::device peer) noexcept;

  /// Maps new pages, readable and writable by the device and its peers, at a run of unmapped addresses. Rounds `bytes`
  /// up to the granularity. Pages have next_page_size() bytes, or `page` bytes if that is not 0; the last one may be
  /// smaller. `page` is a multiple of the granularity; if it is not less than the run, one page covers the run. Maps
  /// all or nothing.
  expected<page_extent, failure> map(std::size_t offset, std::size_t bytes, std::size_t page = 0) noexcept;

  /// Unmaps a run of whole pages. Destroys the memory of pages that are mapped nowhere else. Returns false, and does
  /// nothing, if the run does not consist of whole pages or one of them is pinned. Pages that the driver refuses to
  /// unmap or destroy still count as mapped; the next call tries them again. Allocates no host memory.
  bool unmap(std::size_t offset, std::size_t bytes) noexcept;

  /// Maps the page that starts at `offset` a second time, at the offset `target`: both addresses show the
  /// same bytes.
  expected<page_extent, failure> alias(std::size_t offset, std::size_t target) noexcept;

  /// Moves the memory of runs of whole pages to adjacent addresses from `target` on, in the order of the runs; all or
  /// nothing. The runs may lie in other objects over the same store. They may not overlap, and no page may be pinned.
  /// The host must have seen all work on their old addresses complete.
  expected<page_extent, failure> move(std::span<page_origin const> runs, std::size_t target) noexcept;
  /// Moves the page that starts at `offset` to the offset `target`, as the function above moves runs.
  expected<page_extent, failure> move(std::size_t offset, std::size_t target) noexcept;

  /// Returns the page that holds the address, if one is mapped there.
  std::optional<page_info> page_of(void const* address) const noexcept;

  /// Forbids to unmap, move or alias the pages of a run of addresses. Each pin() needs its own unpin(). Returns false,
  /// and pins nothing, if a part of the run is not mapped.
  bool pin(void const* address, std::size_t bytes) noexcept;
  /// Takes back one pin() of the run.
  void unpin(void const* address, std::size_t bytes) noexcept;

  /// Returns the page that holds the address, with a file descriptor by which another process can map it. The caller
  /// closes the descriptor. Pins the page until unpin().
  expected<exported_page, failure> export_page(void const* address) noexcept;

  /// Calls `visitor(page_info)` for every page, in the order of addresses.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& page : table_.pages()) visitor(detail::info_of(page));
  }

private:
  virtual_pages(std::size_t space, std::shared_ptr<detail::page_store> pages);
  inline detail::page_store& store() const noexcept { return mapper_.store(); }
  inline void* address_of(std::size_t offset) const noexcept { return static_cast<std::byte*>(base()) + offset; }
  std::size_t offset_of(void const* address) const noexcept;
  // Returns granted if pages can be mapped at the run, otherwise the reason.
  outcome refusal(page_extent run) const noexcept;
  // Maps the pages, and adds them to the table; all or nothing.
  expected<page_extent, failure> install(detail::page_map pages, page_extent run, std::size_t requested) noexcept;
  // Tells watchers, and calls the option on_unmapping.
  void announce_unmapping(page_extent run) const noexcept;
  void unmap_all(detail::page_map pages) noexcept;
  // Tries again to unmap and destroy the pages that the driver has refused before.
  void retry_refused() noexcept;

  detail::page_mapper mapper_;
  detail::page_table table_;
};
} // namespace extend

static_assert(page_source<virtual_pages>);

} // namespace gpumem
