// A report for people: how much memory of a pool each stream holds, and how much is free.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:memory_report;
import :error;
import :frees;
import :pool_parts;
import :std;

namespace gpumem::detail {

/// Returns a text. Its first line has the pool's reserved, live, cached and free bytes. Each further line counts the
/// live blocks of one stream whose sizes round up to the same power of two. Cached blocks and free ranges have such
/// lines too; those of free ranges name no stream. Takes the locks of all shards, for a time in proportion to the
/// number of blocks. Throws std::bad_alloc.
export std::string describe_memory(pool_parts& parts, shard_frees& frees);

/// Appends the failure and the text of describe_memory() to the file that the pool's option `failure_report` names.
/// Does nothing if the file cannot be written.
export void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& why) noexcept;

} // namespace gpumem::detail
