// The options of a request for memory.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:acquire_options;
import :cuda;
import :executor;
import :std;
import :sync;

namespace gpumem {

/// Options of a request.
export struct acquire_options {
  std::size_t alignment = 256;   ///< alignment of the memory, in bytes; a power of two
  executor* resume_on = nullptr; ///< resumes a coroutine that had to wait; null: the library thread does
  int priority = 0;              ///< waiting requests of higher priority are served first
  /// When std::chrono::steady_clock reaches this time, a request that still waits ends with outcome::deadline. The
  /// library thread checks the clock. Memory that is free when the request begins is granted even after the deadline.
  sync::time_point deadline = sync::time_point::max();
};

/// One of the blocks for which acquire_all() asks.
export struct block_request {
  stream_ref stream;           ///< the stream in whose order the block is valid
  std::size_t bytes;           ///< size of the block, in bytes
  std::size_t alignment = 256; ///< alignment of the block, in bytes; a power of two
};

} // namespace gpumem
