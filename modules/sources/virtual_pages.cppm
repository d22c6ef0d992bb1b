// virtual_pages: one address range of a device, backed by pages that can be mapped, unmapped and moved one by one.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <functional>
#include <map>
#include <memory>
#include <ranges>
#include <span>
export module gpumem:virtual_pages;
import :cuda;
import :device;
import :error;
import :std;

namespace gpumem {

namespace extend {
/// A range of addresses, by its offset from the first address that the source reserved.
export struct page_extent {
  std::size_t offset = 0; ///< in bytes
  std::size_t bytes = 0;  ///< in bytes

  /// Returns the offset of the first byte after the range.
  inline std::size_t end() const noexcept { return offset + bytes; }
  friend bool operator==(page_extent const&, page_extent const&) = default;
};

/// A page: one physical allocation that is mapped at a range of addresses.
export struct page_info {
  page_extent where;    ///< the addresses of the page
  bool pinned = false;  ///< another library or process uses the page, so it may not be unmapped or moved
  bool aliased = false; ///< the same physical memory is mapped at another offset too

  friend bool operator==(page_info const&, page_info const&) = default;
};

/// An upstream from which a pool maps single pages. It reserves a fixed range of addresses, and each page is physical
/// memory that is mapped at some of them. A hole is a range between mapped pages where no page is mapped. Offsets count
/// bytes from base() and are multiples of granularity(). Mapped memory may be used by every stream at once.
///
/// - To grow by `n` bytes, call `map(*find_extent(n), n)`. find_extent() returns the smallest hole of at least `n`
///   bytes. If there is none, it returns mapped_end(), so that the mapped addresses stay together.
/// - If the last free range of a pool ends at mapped_end(), the pool maps only the missing bytes there.
/// - Memory is unmapped in whole pages: a page that is only partly free stays mapped. page_of() returns the page that
///   holds an address.
/// - To move a free page, alias() maps it at a second offset, without a wait. After the host has seen all use of the
///   page at the first offset complete, unmap() removes the first mapping.
/// - mapped_bytes() is the physical memory that the source holds.
export template <class S>
concept page_source = requires(S& source, S const& seen, std::size_t n, void const* address) {
  { seen.base() } noexcept -> std::same_as<void*>;
  { seen.address_space() } noexcept -> std::same_as<std::size_t>;
  { seen.granularity() } noexcept -> std::same_as<std::size_t>;
  { seen.mapped_bytes() } noexcept -> std::same_as<std::size_t>;
  { seen.mapped_end() } noexcept -> std::same_as<std::size_t>;
  { seen.find_extent(n) } noexcept -> std::same_as<std::optional<std::size_t>>;
  { seen.page_of(address) } noexcept -> std::same_as<std::optional<page_info>>;
  { source.map(n, n) } noexcept -> std::same_as<expected<page_extent, failure>>;
  { source.unmap(n, n) } noexcept -> std::same_as<bool>;
  { source.alias(n, n) } noexcept -> std::same_as<expected<page_extent, failure>>;
};
} // namespace extend

/// Options of virtual pages; sizes in bytes.
export struct virtual_pages_options {
  /// Bytes of addresses to reserve. 0: eight times the device's memory. If the driver refuses, the constructor tries
  /// four times, two times and one time.
  std::size_t address_space = 0;
  std::vector<device> peers = {}; ///< other devices that may read and write the memory
  bool exportable = false;        ///< pages may be exported to other processes by export_page()
  bool rdma = false;              ///< network devices may read and write the memory

  /// Called after each mapping, for libraries that register memory (NCCL, UCX). If the function returns false or
  /// throws, the mapping is undone. `on_mapped` and `on_unmapping` run inside map(), alias(), move(), unmap() and the
  /// destructor. So they may not call this object, nor take the lock that its owner holds for these calls. They are not
  /// called on a lost device.
  std::function<bool(void* address, std::size_t bytes)> on_mapped = {};
  /// Called before each unmapping; may not throw. See `on_mapped`.
  std::function<void(void* address, std::size_t bytes)> on_unmapping = {};
};

namespace detail {
/// The granularity of pages on all known devices, in bytes. On a device with a larger granularity, pages are larger.
export inline constexpr std::size_t smallest_page = std::size_t{2} << 20;
/// The largest page that virtual_pages chooses by itself, in bytes. Larger pages are rarely free as a whole.
export inline constexpr std::size_t largest_page = std::size_t{32} << 20;
} // namespace detail

namespace extend {
/// Virtual memory of one device, as a page source. The constructor reserves the addresses; they cost no memory. On an
/// H200 it took about 27 µs to create a page, 33 µs to move one and 21 µs to release one, whatever its size. So the
/// page size grows with the mapped bytes (see next_page_size()), unless the caller of map() names a size.
///
/// No call waits for the device. Before it unmaps or moves pages, the caller must make sure that the *host* has seen
/// all work on their addresses complete; an order between streams is not enough.
///
/// Not thread-safe: calls may not overlap. Any thread may call base(), address_space(), granularity() and where() at
/// any time, since their results never change.
///
/// A call that fails changes nothing. Failures: exhausted (no memory), too_large (no addresses), device_lost,
/// driver_error, and invalid_argument for wrong arguments. On a lost device, and while the process exits, unmap() and
/// the destructor make no driver calls.
export class virtual_pages {
public:
  /// Throws std::invalid_argument if a peer cannot access the device or the address space is too large. Throws
  /// cuda_error for an error of the driver. Its code is CUDA_ERROR_NOT_SUPPORTED if the device lacks virtual memory or
  /// the feature of an option.
  explicit virtual_pages(gpumem::device where = gpumem::device{0}, virtual_pages_options options = {});
  virtual_pages(virtual_pages const&) = delete;
  virtual_pages& operator=(virtual_pages const&) = delete;
  /// Releases all memory, pinned pages too; no work may use the memory any more.
  ~virtual_pages();

  /// Returns whether the device has virtual memory; false if the driver does not answer.
  static bool supported(gpumem::device where) noexcept;

  /// Returns the device.
  gpumem::device where() const noexcept { return device_; }
  /// Returns the first reserved address.
  void* base() const noexcept { return reinterpret_cast<void*>(base_); }
  /// Returns the number of reserved bytes.
  std::size_t address_space() const noexcept { return address_space_; }
  /// Returns the granularity in bytes: all offsets and page sizes are multiples of it.
  std::size_t granularity() const noexcept { return granularity_; }
  /// Returns `bytes`, rounded up to a multiple of the granularity.
  std::size_t round_up(std::size_t bytes) const noexcept;

  /// Returns the bytes of physical memory that the object holds; a page that is mapped twice counts once.
  std::size_t mapped_bytes() const noexcept { return mapped_bytes_; }
  /// Returns the offset of the first byte after the last mapped page.
  std::size_t mapped_end() const noexcept;
  /// Returns the number of mapped pages; a page that is mapped twice counts twice.
  std::size_t pages() const noexcept { return pages_.size(); }
  /// Returns the size of a page that is created now: 1/128 of the mapped bytes, between 2 and 32 MiB.
  std::size_t next_page_size() const noexcept;

  /// Returns the offset at which `bytes` can be mapped: that of the smallest hole that is large enough, otherwise
  /// mapped_end(). Returns nothing if too few addresses are left.
  std::optional<std::size_t> find_extent(std::size_t bytes) const noexcept;

  /// Lets another device read and write all memory that is mapped now or later. Returns the driver's answer.
  CUresult open_to(gpumem::device peer) noexcept;

  /// Maps new pages at a range of unmapped addresses; all or nothing. The device and its peers may read and write them.
  /// Rounds `bytes` up to the granularity. Each page has `page` bytes, or next_page_size() bytes if that is 0; the last
  /// page may be smaller. `page` must be a multiple of the granularity.
  expected<page_extent, failure> map(std::size_t offset, std::size_t bytes, std::size_t page = 0) noexcept;

  /// Unmaps a range of whole pages. The memory of a page is released unless it is also mapped at another offset.
  /// Returns false, and does nothing, if the range does not consist of whole pages or one of them is pinned. If the
  /// driver refuses to unmap or release a page, its memory still counts as mapped, and the next call tries again.
  /// Allocates no host memory.
  bool unmap(std::size_t offset, std::size_t bytes) noexcept;

  /// Maps the page that starts at `offset` at the offset `to` as well: both addresses show the same bytes.
  expected<page_extent, failure> alias(std::size_t offset, std::size_t to) noexcept;

  /// Moves the pages of `runs`, each a range of whole pages, side by side to the offset `to`, in the order of `runs`;
  /// all or nothing. The runs may not overlap, and no page may be pinned. The host must have seen all work on their old
  /// addresses complete.
  expected<page_extent, failure> move(std::span<page_extent const> runs, std::size_t to) noexcept;
  /// Moves the page that starts at `offset`, as the function above does.
  expected<page_extent, failure> move(std::size_t offset, std::size_t to) noexcept;

  /// Returns the page that holds the address; nothing if no page is mapped there.
  std::optional<page_info> page_of(void const* address) const noexcept;

  /// Pins the pages that hold the range: they may not be unmapped, moved or aliased. Each pin() needs its own unpin().
  /// Returns false, and pins nothing, if a part of the range is not mapped.
  bool pin(void const* address, std::size_t bytes) noexcept;
  /// Takes back one pin() of the same range.
  void unpin(void const* address, std::size_t bytes) noexcept;

  /// Returns a file descriptor by which another process can map the page that holds the address. The caller closes it.
  /// Pins the page: call unpin() when no other process has it mapped any more.
  expected<int, failure> export_page(void const* address) noexcept;

  /// Calls `visitor(page_info)` for each mapping of a page, in the order of addresses.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& [offset, page] : pages_) visitor(info_of(offset, page));
  }

private:
  struct memory {
    CUmemGenericAllocationHandle handle = 0;
    bool held = false; // whether `handle` is valid; its bytes are then counted in mapped_bytes_
    std::size_t bytes = 0;
    unsigned mappings = 0;
    unsigned pins = 0;
  };
  struct mapped_page {
    std::shared_ptr<memory> of;
    bool mapped = false; // false while the page is made, and if it is unmapped but its memory could not be released
  };
  using page_map = std::map<std::size_t, mapped_page>; // by offset; nodes move between maps, which allocates nothing
  using page_span = std::ranges::subrange<page_map::const_iterator>;
  using unreleased_map = std::multimap<std::size_t, mapped_page>;

  bool is_gone() const noexcept;
  template <class Call> CUresult on_device(Call call) noexcept;
  static page_info info_of(std::size_t offset, mapped_page const& at) noexcept;
  page_map::const_iterator find_containing(void const* address) const noexcept;
  std::size_t pages_in(void const* address, std::size_t bytes) const noexcept;
  bool is_unmapped(page_extent run) const noexcept;
  page_span made_of(page_extent run) const noexcept;
  static bool any_pinned(page_span const& pages) noexcept;
  outcome refusal(page_extent run) const noexcept;
  page_map planned(page_extent run, std::size_t page) const;
  expected<page_extent, failure> install(page_map made, page_extent run, std::size_t requested) noexcept;
  CUresult map_all(page_map& made, page_extent run) noexcept;
  bool has_memory(page_map page) noexcept;
  CUresult create(memory& of) noexcept;
  CUresult attach(std::size_t offset, mapped_page& at) noexcept;
  bool notify_mapped(page_extent run) const noexcept;
  bool unmap_page(std::size_t offset, mapped_page& at) noexcept;
  void unmap_all(page_map& leaving) noexcept;
  void retry_unreleased() noexcept;

  gpumem::device device_;
  virtual_pages_options options_;
  CUmemAllocationProp properties_{};
  std::vector<CUmemAccessDesc> rights_;
  CUdeviceptr base_ = 0;
  std::size_t address_space_ = 0;
  std::size_t granularity_ = 0;
  std::size_t mapped_bytes_ = 0;
  bool full_ = false; // whether the device had no memory for the last page that was to be created
  page_map pages_;
  unreleased_map unreleased_; // pages that the driver refused to unmap or release; the next call tries again
};
} // namespace extend

static_assert(page_source<virtual_pages>);

} // namespace gpumem
