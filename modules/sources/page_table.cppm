// The pages that are mapped in one address range, by their offset from its start.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <map>
#include <memory>
#include <ranges>
export module gpumem:page_table;
import :cuda;
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
  page_extent where;    ///< addresses of the page
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
  bool held = false; ///< the driver has created the memory, and it is not released
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
/// Pages that the driver refused to unmap or release, by offset; several may have been mapped at one offset.
export using unreleased_map = std::multimap<std::size_t, mapped_page>;

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
  inline unreleased_map& unreleased() noexcept { return unreleased_; }

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
  void add(page_map& made) noexcept;
  // Removes the pages from the table and returns them.
  page_map take(page_span const& pages) noexcept;
  // Takes over the pages that the driver refused to unmap or release.
  void keep_unreleased(page_map& refused) noexcept;

private:
  page_map pages_;
  unreleased_map unreleased_;
};

} // namespace detail
} // namespace gpumem
