// What a request for memory asks for, beside its bytes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:acquire_options;
import :cuda;
import :executor;
import :std;
import :sync;

namespace gpumem {

/// Options of a request.
export struct acquire_options {
  std::size_t alignment = 256;
  executor* resume_on = nullptr; ///< where a request that had to wait resumes; null: the library thread
  int priority = 0;              ///< of requests that wait those of the highest priority go first
  /// A request that has waited until then ends with outcome::deadline; the library thread looks at the clock. Memory
  /// that is at hand at the beginning is granted whatever the deadline.
  sync::time_point deadline = sync::time_point::max();
};

/// One of the blocks for which acquire_all asks.
export struct block_request {
  stream_ref stream;
  std::size_t bytes;
  std::size_t alignment = 256;
};

} // namespace gpumem
