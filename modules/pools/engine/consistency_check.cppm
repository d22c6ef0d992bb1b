// The consistency check of a pool, for tests.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:consistency_check;
import :pool_parts;
import :shard_frees;
import :std;

namespace gpumem::detail {

/// Returns whether each byte is in exactly one place: live + cached + free = reserved, no overlap, free lists and
/// neighbours agree, and the cached bytes are within the budget. Takes the locks of all shards.
export bool is_consistent(pool_parts& parts, shard_frees& frees);

} // namespace gpumem::detail
