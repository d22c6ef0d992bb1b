// Addresses of one device in a row, backed page by page with memory that can be given back, and moved.
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
/// A run of addresses: how far from the first address of its source, and how long. Bytes.
export struct page_extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;

  inline std::size_t end() const noexcept { return offset + bytes; }
  friend bool operator==(page_extent const&, page_extent const&) = default;
};

/// A page: one physical allocation where it is mapped.
export struct page_info {
  page_extent where;
  bool pinned = false;  ///< somebody outside relies on it: it neither moves nor goes
  bool aliased = false; ///< the same memory is mapped at another offset too

  friend bool operator==(page_info const&, page_info const&) = default;
};

/// What a pool can draw from page by page instead of chunk by chunk. Offsets count from base(), in units of
/// granularity(); everything mapped is usable by every stream at once.
///
/// - To grow by `n` bytes: `map(*find_extent(n), n)`. find_extent() gives the smallest hole that unmapping left and
/// that is large
///   enough, then the end, so that the source stays in one piece. A pool whose last range is free and reaches up to
///   mapped_end() maps only what is missing, at mapped_end(), and has both in one range.
/// - Memory goes back in whole pages: page_of() tells where the one begins and ends that holds an address; a range that
///   ends inside a page keeps it.
/// - Free memory moves under a miss: alias() maps a wholly free page at a second offset, with no wait; unmap() of the
///   first offset follows once the host has seen complete whatever used the page there. Order tags go with the page.
/// - mapped_bytes() is what the device holds for the source.
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
  /// How many to reserve; 0: eight times the memory of the device, or half as many as long as they are not to be had.
  std::size_t address_space = 0;
  std::vector<device> peers = {}; ///< other devices that may read and write the memory
  bool exportable = false;        ///< pages may be handed to other processes
  bool rdma = false;              ///< network devices may reach the memory

  /// Called with each run of addresses that was mapped, and before one is unmapped: for whoever registers memory (NCCL,
  /// UCX). False, or an exception, refuses a mapping, which is then undone; on_unmapping may not throw. Called inside
  /// map(), alias(), unmap() and the destructor: they may not call the source, nor take the lock that guards it. On a
  /// lost device nobody is told.
  std::function<bool(void* address, std::size_t bytes)> on_mapped = {};
  std::function<void(void* address, std::size_t bytes)> on_unmapping = {};
};

namespace detail {
/// What pages are multiples of, on every device so far; a device that wants more rounds up. Bytes.
export inline constexpr std::size_t smallest_page = std::size_t{2} << 20;
/// Larger ones are rarely free as a whole, and only where memory is spent on speed; bytes.
export inline constexpr std::size_t largest_page = std::size_t{32} << 20;
} // namespace detail

namespace extend {
/// Virtual memory of one device, as a page source. Addresses are reserved at construction and never move; they cost no
/// memory. On an H200 a page took some 27 µs to make, 33 µs to move and 21 µs to give back, whatever its size; so pages
/// grow with what is mapped, next_page_size(), unless the owner knows better.
///
/// No call waits for the device. Unmapping, and moving, want that the *host* has seen complete all work that uses the
/// addresses: an order between streams is not enough. That is the caller's duty.
///
/// Guarded by its owner: one call at a time, and no other call beside map(), unmap(), alias(), move(), pin() or
/// unpin(). The owner need not hold a lock for that where it lets only one thread grow and shrink.
///
/// Failures leave everything as it was: exhausted (no memory, or no addresses: too_large), device_lost, driver_error,
/// and invalid_argument for what the caller got wrong. On a lost device, and once the driver is gone, unmap() and the
/// destructor are bookkeeping.
export class virtual_pages {
public:
  /// Throws cuda_error with CUDA_ERROR_NOT_SUPPORTED where the device has no virtual memory or not what the options
  /// want of it, std::invalid_argument for a peer that cannot reach the device, cuda_error.
  explicit virtual_pages(gpumem::device where = gpumem::device{0}, virtual_pages_options options = {});
  virtual_pages(virtual_pages const&) = delete;
  virtual_pages& operator=(virtual_pages const&) = delete;
  /// Gives all memory back; nothing may use it any more, pinned or not.
  ~virtual_pages();

  /// Whether the device has virtual memory; false where it cannot be asked.
  static bool supported(gpumem::device where) noexcept;

  gpumem::device where() const noexcept { return device_; }
  void* base() const noexcept { return reinterpret_cast<void*>(base_); }
  /// How many bytes of addresses there are.
  std::size_t address_space() const noexcept { return address_space_; }
  /// What offsets, and the sizes of pages, are multiples of.
  std::size_t granularity() const noexcept { return granularity_; }
  std::size_t round_up(std::size_t bytes) const noexcept;

  /// Physical memory held, in bytes; a page that is mapped twice counts once.
  std::size_t mapped_bytes() const noexcept { return mapped_bytes_; }
  /// From here on nothing is mapped.
  std::size_t mapped_end() const noexcept;
  /// How many pages are mapped; each alias is one more.
  std::size_t pages() const noexcept { return pages_.size(); }
  /// The size of a page made now: 1/128 of what is mapped, between 2 and 32 MiB.
  std::size_t next_page_size() const noexcept;

  /// Where `bytes` can be mapped: in the smallest hole that is large enough, else at mapped_end(); none where the
  /// addresses are used up.
  std::optional<std::size_t> find_extent(std::size_t bytes) const noexcept;

  /// Backs a run of addresses at which nothing is mapped with new pages, readable and writable by the device and its
  /// peers. `bytes` are rounded up to the granularity. Pages are of next_page_size() bytes, or of `page` bytes where
  /// that is given (a multiple of the granularity; `bytes` makes one page of all); the last one may be smaller. All of
  /// it, or nothing.
  expected<page_extent, failure> map(std::size_t offset, std::size_t bytes, std::size_t page = 0) noexcept;

  /// Unmaps a run of whole pages; their memory goes back to the device unless it is mapped elsewhere too. False, and
  /// nothing is done, where the run is not made of whole pages or one of them is pinned. What the driver does not let
  /// go is kept, counted, and tried again with the next call. Allocates no host memory.
  bool unmap(std::size_t offset, std::size_t bytes) noexcept;

  /// Maps the page that begins at `offset` at a second place too: both show the same bytes.
  expected<page_extent, failure> alias(std::size_t offset, std::size_t to) noexcept;

  /// Moves the memory of runs of whole pages, which do not overlap and none of which is pinned, to addresses side by
  /// side, in that order: all of it, or nothing. The host has seen all work complete that uses the pages where they
  /// are.
  expected<page_extent, failure> move(std::span<page_extent const> runs, std::size_t to) noexcept;
  /// The same of the page that begins at `offset`.
  expected<page_extent, failure> move(std::size_t offset, std::size_t to) noexcept;

  /// The page in which the address lies, if one is mapped there.
  std::optional<page_info> page_of(void const* address) const noexcept;

  /// Keeps the pages of a run of addresses where they are, until as many calls of unpin(). False, and nothing is
  /// pinned, where a part of the run is not mapped.
  bool pin(void const* address, std::size_t bytes) noexcept;
  void unpin(void const* address, std::size_t bytes) noexcept;

  /// A file descriptor by which another process can map the page in which the address lies; the caller closes it. The
  /// page is pinned: unpin() it when nobody else has it mapped any more.
  expected<int, failure> export_page(void const* address) noexcept;

  /// Visits every page in order: `visit(page_info)`.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& [offset, page] : pages_) visitor(info_of(offset, page));
  }

private:
  struct memory {
    CUmemGenericAllocationHandle handle = 0;
    bool held = false; // the handle is
    std::size_t bytes = 0;
    unsigned mappings = 0;
    unsigned pins = 0;
  };
  struct mapped_page {
    std::shared_ptr<memory> of;
    bool mapped = false; // false in between: while it is made, and where its memory could not be released
  };
  using page_map = std::map<std::size_t, mapped_page>; // by offset; nodes move between maps without allocation
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
  bool full_ = false; // the device was, when it was last asked for a page
  page_map pages_;
  unreleased_map unreleased_; // what the driver has not let go yet
};
} // namespace extend

static_assert(page_source<virtual_pages>);

} // namespace gpumem
