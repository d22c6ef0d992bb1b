// The labels and streams that hold most of a pool's memory, for the text of a failure.
// SPDX-License-Identifier: Apache-2.0
module;
#include <span>
#include <string>
export module gpumem:holders;
import :memory_walk;
import :std;

namespace gpumem::detail {

/// Appends to `text` the three labels or streams with the most live bytes. Adds how many of them would have to free
/// their memory, so that the pool can serve a request for `bytes`, unless that is 0. Adds nothing if no block is live.
/// `blocks`: all memory of the pool; `limit`: the most that it may reserve. Throws std::bad_alloc.
export void append_holders(std::span<copied_block const> blocks, std::size_t limit, std::size_t bytes,
                           std::string& text);

} // namespace gpumem::detail
