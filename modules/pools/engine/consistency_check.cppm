// The consistency check of a pool, for tests.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:consistency_check;
import :frees;
import :pool_parts;
import :std;

namespace gpumem::detail {

/// Returns whether the records of a pool agree: each reserved byte is live, cached or free, and blocks do not overlap.
/// The free lists hold exactly the free ranges, and the thread caches keep within their budget. Takes the locks of all
/// shards.
export bool is_consistent(pool_parts& parts, shard_frees& frees);

} // namespace gpumem::detail
