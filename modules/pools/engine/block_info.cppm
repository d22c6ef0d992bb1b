// The description of the memory in which a pointer lies.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_info;
import :std;
import :stream_timeline;

namespace gpumem {

/// Describes the block or the free range in which a pointer lies.
export struct block_info {
  void* base = nullptr;
  std::size_t bytes = 0;     ///< requested; 0 of free memory
  std::size_t allocated = 0; ///< rounded up; of free memory, the size of the range
  std::uint64_t stream = 0;  ///< id of the stream that it was given to
  bool live = false;
};

namespace detail {

/// A live block, found by its owner.
export struct owned_block {
  std::size_t bytes;       ///< requested
  stream_timeline* stream; ///< for which it was allocated
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
