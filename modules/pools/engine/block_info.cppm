// The description of the memory in which a pointer lies.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_info;
import :block;
import :std;
import :stream_timeline;

namespace gpumem {

/// Describes the block or the free range in which a pointer lies.
export struct block_info {
  void* base = nullptr;      ///< start of the block or range
  std::size_t bytes = 0;     ///< requested; 0 of free memory
  std::size_t allocated = 0; ///< rounded up; of free memory, the size of the range
  std::uint64_t stream = 0;  ///< id of the stream that it was given to
  bool live = false;         ///< false: the memory is free
};

/// A part of a pool's reserved memory: a live block, or memory that is free or in a cache.
export struct memory_range {
  void* base = nullptr;         ///< start of the range
  std::size_t bytes = 0;        ///< size of the range
  std::size_t requested = 0;    ///< of a live block; 0 for other memory
  std::uint64_t stream = 0;     ///< id of the stream for which a live block was allocated; 0 for other memory
  bool live = false;            ///< false: free or cached
  void* region = nullptr;       ///< start of the contiguous memory, got as a chunk or as pages, that holds the range
  std::size_t region_bytes = 0; ///< bytes of that memory
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

// Ends the region to which the ranges from `first` on belong.
inline void end_region(std::span<memory_range> ranges) noexcept {
  if (ranges.empty()) return;
  auto& last = ranges.back();
  auto* const end = static_cast<char*>(last.base) + last.bytes;
  for (auto& each : ranges) {
    each.region = ranges.front().base;
    each.region_bytes = static_cast<std::size_t>(end - static_cast<char*>(ranges.front().base));
  }
}

/// A live block, found by its owner.
export struct owned_block {
  std::size_t bytes;       ///< requested
  stream_timeline* stream; ///< for which it was allocated
  /// Graph memory: the id of the open capture in which it was allocated, if the calling thread has made the newest
  /// request of that capture; otherwise 0.
  std::uint64_t capture = 0;
};

// The live blocks of a pool: their sum, and the largest of them, the largest first.
struct live_blocks {
  static constexpr std::size_t shown = 5;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::vector<block_info> largest;

  // Throws std::bad_alloc.
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
