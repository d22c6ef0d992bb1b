// The description of the memory in which a pointer lies.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_info;
import :std;

namespace gpumem {

/// Describes the block or the free range in which a pointer lies.
export struct block_info {
  void* base = nullptr;
  std::size_t bytes = 0;     ///< requested; 0 of free memory
  std::size_t allocated = 0; ///< rounded up; of free memory, the size of the range
  std::uint64_t stream = 0;  ///< id of the stream that it was given to
  bool live = false;
};

} // namespace gpumem
