// Descriptions of a pool's memory: of one block, of one range, and of the largest live blocks.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_info;
import :block;
import :std;
import :stream_timeline;

namespace gpumem {

/// Describes the block or the free range in which a pointer lies.
export struct block_info {
  void* base = nullptr;      ///< start of the block or range
  std::size_t bytes = 0;     ///< bytes that the caller requested; 0 for free memory
  std::size_t allocated = 0; ///< bytes of the whole block, rounded up, or of the free range
  std::uint64_t stream = 0;  ///< id of the stream for which the block was allocated; 0 for free memory
  bool live = false;         ///< whether the block is allocated; false for free memory
};

/// A part of a pool's reserved memory: a live block, a free range, or a freed block in a thread's cache.
export struct memory_range {
  void* base = nullptr;         ///< start of the range
  std::size_t bytes = 0;        ///< size of the range
  std::size_t requested = 0;    ///< bytes that the caller requested; 0 if the range is not live
  std::uint64_t stream = 0;     ///< id of the stream for which the live block was allocated; 0 if the range is not live
  bool live = false;            ///< whether the range is a live block
  void* region = nullptr;       ///< start of the contiguous memory that holds the range: a chunk, or a run of pages
  std::size_t region_bytes = 0; ///< size of that contiguous memory
};

namespace detail {

inline memory_range range_of(block const& one) noexcept {
  memory_range range{one.pointer(), one.bytes};
  if (!one.is_live()) return range;
  range.requested = one.requested;
  range.stream = one.stream->id();
  range.live = true;
  return range;
}

// Sets the region of each of these adjacent ranges: the memory from the first range to the last.
inline void end_region(std::span<memory_range> ranges) noexcept {
  if (ranges.empty()) return;
  auto& last = ranges.back();
  auto* const end = static_cast<char*>(last.base) + last.bytes;
  for (auto& each : ranges) {
    each.region = ranges.front().base;
    each.region_bytes = static_cast<std::size_t>(end - static_cast<char*>(ranges.front().base));
  }
}

/// Describes a live block. Only the owner of the block may rely on it, since the owner can free the block at any time.
export struct owned_block {
  std::size_t bytes;       ///< bytes that the caller requested
  stream_timeline* stream; ///< stream for which the block was allocated
  /// Id of the graph capture in which the block was allocated. 0 if it was allocated in none, if that capture has
  /// ended, or if another thread has made the capture's newest request for memory.
  std::uint64_t capture = 0;
};

// The number and the bytes of a pool's live blocks, and up to `shown` of the largest blocks in descending order.
struct live_blocks {
  static constexpr std::size_t shown = 5;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::vector<block_info> largest;

  // Counts a block, and keeps its description if it is one of the largest. Throws std::bad_alloc.
  void add(block_info const& one) {
    ++count;
    bytes += one.bytes;
    auto at = largest.begin();
    while (at != largest.end() && at->bytes >= one.bytes) ++at;
    largest.insert(at, one);
    if (largest.size() > shown) largest.pop_back();
  }
};

} // namespace detail

} // namespace gpumem
