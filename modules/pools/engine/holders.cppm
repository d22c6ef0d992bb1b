// The labels and streams that hold most of a pool's memory, for the text of a failure.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:holders;
import :frees;
import :pool_parts;
import :std;

namespace gpumem::detail {

/// Appends to `text` the three labels or streams with the most live bytes. Adds how many of them would have to free
/// their memory, so that the pool can serve a request for `bytes`. Adds nothing if no block is live. Takes time in
/// proportion to the number of blocks. Throws std::bad_alloc.
export void append_holders(pool_parts& parts, shard_frees& frees, std::size_t bytes, std::string& text);

} // namespace gpumem::detail
