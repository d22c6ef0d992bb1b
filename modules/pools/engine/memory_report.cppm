// A text that tells people which streams hold the memory of a pool, and what is free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:memory_report;
import :error;
import :pool_parts;
import :shard_frees;
import :std;

namespace gpumem::detail {

/// Returns a text with the sums of the pool, and a line for each stream and power of two of live blocks, of cached
/// blocks and of free ranges. Takes the locks of all shards, and time in proportion to the number of blocks. Throws
/// std::bad_alloc.
export std::string describe_memory(pool_parts& parts, shard_frees& frees);

/// Appends the text and the failure to the file that the pool's options name. Does nothing for a request that may still
/// wait, and if the file cannot be written.
export void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& why) noexcept;

} // namespace gpumem::detail
